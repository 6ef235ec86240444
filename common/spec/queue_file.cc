// queues.yaml.
#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/ids.h"
#include "common/spec/config_files.h"
#include "common/spec/reader.h"
#include "common/spec/yaml_writer.h"

namespace muster {
namespace {

constexpr int64_t kMaxWeight = 1 << 20;
constexpr int64_t kMaxMilli = int64_t{1} << 42;
constexpr int kMaxQueueDepth = 8;
constexpr int kMaxQueues = 4'096;

class QueueReader {
 public:
  explicit QueueReader(Document* document) : document_(*document) {}

  void Read(pb::QueueTree* out) {
    Fields top(document_, document_.root(), "");
    top.ForEach("queues", [&](const YamlNode& node, const std::string& path) {
      ReadQueue(node, path, out->add_queues());
    });
    top.Finish();
    if (!top.Has("queues") && document_.Sound(""))
      document_.AddAtPath("queues", "is missing; list at least one queue");
  }

 private:
  void ReadQueue(const YamlNode& node, const std::string& path, pb::QueueSpec* queue) {
    if (!node.IsMap()) {
      document_.MarkUnsound(path);
      return document_.Add(node, path,
                           absl::StrCat("must be a map with a queue's fields; got ", Shown(node)));
    }
    Fields fields(document_, node, path);
    std::string text;
    int64_t value = 0;
    bool held = false;
    if (fields.Text("name", &text)) queue->set_name(text);
    fields.ForEachEntry(
        "quota", [&](const YamlNode& key, const YamlNode& quota, const std::string& at) {
          if (!quota.IsMap())
            return document_.Add(
                key, at,
                absl::StrCat("must be a map such as {guarantee: 8, limit: 16, weight: 1}; got ",
                             Shown(quota)));
          ReadQuota(Fields(document_, quota, at), &(*queue->mutable_quota())[key.text]);
        });
    fields.TextList("submit", [&](std::string who) { queue->add_submit(std::move(who)); });
    fields.TextList("admin", [&](std::string who) { queue->add_admin(std::move(who)); });
    if (fields.Duration("min_runtime", &value)) queue->set_min_runtime_ns(value);
    if (fields.Duration("max_time_limit", &value)) queue->set_max_time_limit_ns(value);
    if (fields.Milli("max_gpus_per_job", &value)) queue->set_max_gpus_per_job_milli(value);
    if (fields.Choice("order", {"fifo", "shortest"}, 0, &text))
      queue->set_order(text == "fifo" ? pb::FIFO : pb::SHORTEST);
    if (fields.Duration("max_wait", &value)) queue->set_max_wait_ns(value);
    if (fields.Bool("held", &held)) queue->set_held(held);
    fields.ForEach("queues", [&](const YamlNode& child, const std::string& at) {
      ReadQueue(child, at, queue->add_queues());
    });
    fields.Finish();
  }

  void ReadQuota(Fields fields, pb::Quota* quota) {
    int64_t value = 0;
    const YamlNode* guarantee = fields.Has("guarantee") ? fields.Take("guarantee") : nullptr;
    if (guarantee != nullptr && guarantee->IsMap()) {
      Fields pools(document_, *guarantee, fields.PathOf("guarantee"));
      int64_t total = 0;
      for (const YamlNode& cluster : guarantee->keys) {
        if (!pools.Milli(cluster.text, &value)) continue;
        (*quota->mutable_guarantee_per_cluster())[cluster.text] = value;
        total += value;
      }
      quota->set_guarantee_milli(total);
    } else if (fields.Milli("guarantee", &value)) {
      quota->set_guarantee_milli(value);
    }
    if (fields.Milli("limit", &value)) quota->set_limit_milli(value);
    if (fields.Int("weight", int64_t{0}, kMaxWeight, &value)) quota->set_weight(value);
    fields.Finish();
  }

  Document& document_;
};

struct Emitter {
  std::function<void(const std::string& path, const std::string& message)> emit;
  std::function<bool(const std::string& map_path)> sound;
};

class QueueChecker {
 public:
  QueueChecker(const QueueContext& context, const Emitter& to) : context_(context), to_(to) {}

  void Check(const pb::QueueTree& tree) {
    if (tree.queues().empty() && to_.sound(""))
      to_.emit("queues", "is empty; list at least one queue");
    CheckSiblings(tree.queues(), "queues", nullptr, "", 1);
  }

 private:
  using Siblings = google::protobuf::RepeatedPtrField<pb::QueueSpec>;

  // Recursion is bounded by kMaxQueueDepth.
  void CheckSiblings(const Siblings& queues, const std::string& path, const pb::QueueSpec* parent,
                     const std::string& parent_path, int depth) {
    if (depth > kMaxQueueDepth)
      return to_.emit(path,
                      absl::StrCat("queues are nested deeper than ", kMaxQueueDepth, " levels"));
    std::set<std::string> names;
    for (int i = 0; i < queues.size(); ++i) {
      const std::string at = IndexPath(path, static_cast<size_t>(i));
      const pb::QueueSpec& queue = queues[i];
      if (++count_ > kMaxQueues) {
        if (count_ == kMaxQueues + 1)
          to_.emit(at, absl::StrCat("more than ", kMaxQueues, " queues"));
        return;
      }
      if (queue.name().empty()) {
        if (to_.sound(at)) to_.emit(at + ".name", "is missing; a queue has a name");
      } else if (!IsLabel(queue.name())) {
        to_.emit(at + ".name",
                 "must be 1 to 63 of letters, digits, '.', '_' and '-', and start with a letter, a "
                 "digit or '_'");
      } else if (!names.insert(queue.name()).second) {
        to_.emit(at + ".name",
                 absl::StrCat("\"", queue.name(), "\" is already the name of a queue beside it"));
      }
      CheckOne(queue, at);
      if (!queue.queues().empty())
        CheckSiblings(queue.queues(), at + ".queues", &queue, at, depth + 1);
    }
    if (parent != nullptr) CheckNesting(queues, *parent, parent_path);
  }

  void CheckOne(const pb::QueueSpec& queue, const std::string& at) {
    const std::map<std::string, pb::Quota> quotas(queue.quota().begin(), queue.quota().end());
    for (const auto& [flavour, quota] : quotas) {
      const std::string path = JoinPath(at + ".quota", flavour);
      if (!IsLabel(flavour))
        to_.emit(path, "a flavour's name is 1 to 63 of letters, digits, '.', '_' and '-'");
      if (!context_.flavours.empty() && flavour != "cpu" &&
          std::find(context_.flavours.begin(), context_.flavours.end(), flavour) ==
              context_.flavours.end()) {
        const std::string guess = DidYouMean(flavour, context_.flavours);
        to_.emit(path,
                 absl::StrCat("no flavour \"", flavour, "\" here",
                              guess.empty() ? absl::StrCat("; known are ",
                                                           absl::StrJoin(context_.flavours, ", "))
                                            : "",
                              ".", guess, " One still to come needs a SKU in the clusters file"));
      }
      int64_t total = 0;
      const std::map<std::string, int64_t> pools(quota.guarantee_per_cluster().begin(),
                                                 quota.guarantee_per_cluster().end());
      for (const auto& [cluster, milli] : pools) {
        const std::string pool = JoinPath(path + ".guarantee", cluster);
        if (!context_.clusters.empty() &&
            std::find(context_.clusters.begin(), context_.clusters.end(), cluster) ==
                context_.clusters.end()) {
          to_.emit(pool, absl::StrCat("no cluster \"", cluster, "\" here.",
                                      DidYouMean(cluster, context_.clusters)));
        }
        CheckMilli(milli, pool);
        if (milli >= 0 && milli <= kMaxMilli) total += milli;
      }
      if (!pools.empty() && total != quota.guarantee_milli()) {
        to_.emit(path + ".guarantee",
                 absl::StrCat("the clusters' shares sum to ", FormatMilli(total), ", the total is ",
                              FormatMilli(quota.guarantee_milli())));
      }
      CheckMilli(quota.guarantee_milli(), path + ".guarantee");
      CheckMilli(quota.limit_milli(), path + ".limit");
      if (quota.weight() < 0 || quota.weight() > kMaxWeight)
        to_.emit(path + ".weight", absl::StrCat("must be a whole number from 0 to ", kMaxWeight,
                                                "; got ", quota.weight()));
      if (quota.has_limit_milli() && quota.guarantee_milli() > quota.limit_milli()) {
        to_.emit(path + ".guarantee",
                 absl::StrCat(FormatMilli(quota.guarantee_milli()), " is above limit ",
                              FormatMilli(quota.limit_milli())));
      }
    }
    if (queue.min_runtime_ns() < 0) to_.emit(at + ".min_runtime", "may not be negative");
    if (queue.max_wait_ns() < 0) to_.emit(at + ".max_wait", "may not be negative");
    if (!pb::QueueOrder_IsValid(queue.order()))
      to_.emit(at + ".order", "must be one of fifo, shortest");
    if (queue.max_time_limit_ns() < 0) to_.emit(at + ".max_time_limit", "may not be negative");
    CheckMilli(queue.max_gpus_per_job_milli(), at + ".max_gpus_per_job");
  }

  void CheckMilli(int64_t milli, const std::string& path) {
    if (milli < 0 || milli > kMaxMilli)
      to_.emit(path, absl::StrCat("must be a number from 0 to ", FormatMilli(kMaxMilli)));
  }

  // What the children are guaranteed fits into what their parent is: in total and, where the parent
  // says it, in each cluster.
  void CheckNesting(const Siblings& queues, const pb::QueueSpec& parent,
                    const std::string& parent_path) {
    std::map<std::string, __int128> total;
    std::map<std::pair<std::string, std::string>, __int128> pools;
    std::map<std::string, std::string>
        first;  // flavour to the path of the first child that has some
    for (int i = 0; i < queues.size(); ++i) {
      for (const auto& [flavour, quota] : queues[i].quota()) {
        total[flavour] += quota.guarantee_milli();
        for (const auto& [cluster, milli] : quota.guarantee_per_cluster())
          pools[{flavour, cluster}] += milli;
        if (quota.guarantee_milli() > 0) {
          first.emplace(flavour,
                        absl::StrCat(IndexPath(parent_path + ".queues", static_cast<size_t>(i)),
                                     ".quota.", flavour, ".guarantee"));
        }
      }
    }
    for (const auto& [flavour, milli] : total) {
      const auto quota = parent.quota().find(flavour);
      const int64_t have = quota == parent.quota().end() ? 0 : quota->second.guarantee_milli();
      if (milli > have && milli <= kMaxMilli) {
        const bool listed = quota != parent.quota().end();
        to_.emit(
            listed ? absl::StrCat(parent_path, ".quota.", flavour, ".guarantee") : first[flavour],
            absl::StrCat("the queues below ", parent.name(), " are guaranteed ",
                         FormatMilli(static_cast<int64_t>(milli)), " ", flavour, ", more than ",
                         parent.name(), "'s ", FormatMilli(have), "; raise it or lower theirs"));
        continue;
      }
      if (quota == parent.quota().end()) continue;
      for (const auto& [cluster, pool_have] : quota->second.guarantee_per_cluster()) {
        const auto pool = pools.find({flavour, cluster});
        if (pool == pools.end() || pool->second <= pool_have) continue;
        to_.emit(absl::StrCat(parent_path, ".quota.", flavour, ".guarantee.", cluster),
                 absl::StrCat("the queues below ", parent.name(), " are guaranteed ",
                              FormatMilli(static_cast<int64_t>(pool->second)), " in ", cluster,
                              ", more than ", parent.name(), "'s ", FormatMilli(pool_have)));
      }
    }
  }

  const QueueContext& context_;
  const Emitter& to_;
  int count_ = 0;
};

void WriteQueues(YamlWriter& out, const google::protobuf::RepeatedPtrField<pb::QueueSpec>& queues) {
  out.Open("queues");
  for (const pb::QueueSpec& queue : queues) {
    out.Item();
    out.Text("name", queue.name());
    if (!queue.quota().empty()) {
      out.Open("quota");
      const std::map<std::string, pb::Quota> sorted(queue.quota().begin(), queue.quota().end());
      for (const auto& [flavour, quota] : sorted) {
        std::string text;
        const auto add = [&](std::string_view name, const std::string& value) {
          absl::StrAppend(&text, text.empty() ? "{" : ", ", std::string(name), ": ", value);
        };
        if (quota.guarantee_per_cluster_size() > 0) {
          const std::map<std::string, int64_t> pools(quota.guarantee_per_cluster().begin(),
                                                     quota.guarantee_per_cluster().end());
          std::string list;
          for (const auto& [cluster, milli] : pools)
            absl::StrAppend(&list, list.empty() ? "{" : ", ", YamlScalar(cluster), ": ",
                            FormatMilli(milli));
          add("guarantee", list + "}");
        } else if (quota.guarantee_milli() != 0) {
          add("guarantee", FormatMilli(quota.guarantee_milli()));
        }
        if (quota.has_limit_milli()) add("limit", FormatMilli(quota.limit_milli()));
        if (quota.has_weight()) add("weight", absl::StrCat(quota.weight()));
        out.Plain(flavour, text.empty() ? "{}" : text + "}");
      }
      out.Close();
    }
    if (!queue.submit().empty()) out.List("submit", {queue.submit().begin(), queue.submit().end()});
    if (!queue.admin().empty()) out.List("admin", {queue.admin().begin(), queue.admin().end()});
    if (queue.min_runtime_ns() != 0)
      out.Plain("min_runtime", ExactDuration(queue.min_runtime_ns()));
    if (queue.max_time_limit_ns() != 0)
      out.Plain("max_time_limit", ExactDuration(queue.max_time_limit_ns()));
    if (queue.max_gpus_per_job_milli() != 0)
      out.Plain("max_gpus_per_job", FormatMilli(queue.max_gpus_per_job_milli()));
    if (queue.order() != pb::QUEUE_ORDER_UNSPECIFIED)
      out.Plain("order", queue.order() == pb::SHORTEST ? "shortest" : "fifo");
    if (queue.max_wait_ns() != 0) out.Plain("max_wait", ExactDuration(queue.max_wait_ns()));
    if (queue.held()) out.Plain("held", "true");
    if (!queue.queues().empty()) WriteQueues(out, queue.queues());
    out.Close();
  }
  out.Close();
}

}  // namespace

bool ParseQueueFile(std::string_view text, std::string_view filename, const QueueContext& context,
                    pb::QueueTree* out, std::vector<Problem>* problems) {
  out->Clear();
  Document document;
  if (document.Parse(text, filename)) {
    QueueReader(&document).Read(out);
    const Emitter emitter{[&](const std::string& path, const std::string& message) {
                            if (!document.HasProblemAt(path)) document.AddAtPath(path, message);
                          },
                          [&](const std::string& map_path) { return document.Sound(map_path); }};
    QueueChecker(context, emitter).Check(*out);
  }
  return document.Deliver(problems);
}

std::vector<FieldProblem> CheckQueueTree(const pb::QueueTree& tree, const QueueContext& context) {
  std::vector<FieldProblem> found;
  const Emitter emitter{[&](const std::string& path, const std::string& message) {
                          found.push_back({path, message});
                        },
                        [](const std::string&) { return true; }};
  QueueChecker(context, emitter).Check(tree);
  return found;
}

std::vector<Problem> PlaceQueueProblems(std::string_view text, std::string_view filename,
                                        const std::vector<FieldProblem>& found) {
  Document document;
  pb::QueueTree tree;
  if (document.Parse(text, filename)) QueueReader(&document).Read(&tree);
  document.TakeSorted();  // the daemon's words only
  for (const FieldProblem& problem : found) document.AddAtPath(problem.path, problem.message);
  return document.TakeSorted();
}

std::string QueueTreeToYaml(const pb::QueueTree& tree) {
  YamlWriter out;
  WriteQueues(out, tree.queues());
  return out.Take();
}

}  // namespace muster
