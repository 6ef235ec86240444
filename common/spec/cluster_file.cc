// clusters.yaml and host.yaml.
#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/ids.h"
#include "common/base/units.h"
#include "common/objects/object_place.h"
#include "common/spec/config_files.h"
#include "common/spec/reader.h"

namespace muster {
namespace {

constexpr int kMaxHosts = 100'000;
constexpr char kNameRule[] =
    "a name is 1 to 63 of letters, digits, '.', '_' and '-', and starts with a letter, a digit or "
    "'_'";

}  // namespace

bool ExpandHosts(const std::string& pattern, std::vector<std::string>* names, std::string* why) {
  const size_t open = pattern.find('[');
  if (open == std::string::npos) {
    *why = absl::StrCat("\"", pattern.substr(0, 70), "\": ", kNameRule);
    names->push_back(pattern);
    return IsLabel(pattern);
  }
  *why = absl::StrCat("\"", pattern.substr(0, 70), "\" is no range; write one such as h[01-16]");
  const size_t close = pattern.find(']', open), dash = pattern.find('-', open);
  if (close == std::string::npos || dash == std::string::npos || dash > close ||
      pattern.find('[', open + 1) != std::string::npos)
    return false;
  const std::string first = pattern.substr(open + 1, dash - open - 1),
                    last = pattern.substr(dash + 1, close - dash - 1);
  const auto digits = [](const std::string& text) {
    return !text.empty() && text.size() <= 9 &&
           text.find_first_not_of("0123456789") == std::string::npos;
  };
  int from = 0, to = 0;
  if (!digits(first) || !digits(last) || !absl::SimpleAtoi(first, &from) ||
      !absl::SimpleAtoi(last, &to))
    return false;
  if (from > to) {
    *why =
        absl::StrCat("the range ", first, "-", last, " is empty; write the smaller number first");
    return false;
  }
  if (to - from >= kMaxHosts) {
    *why = absl::StrCat("the range ", first, "-", last, " has more than ", kMaxHosts,
                        " hosts; write a smaller one");
    return false;
  }
  for (int i = from; i <= to; ++i) {
    names->push_back(absl::StrCat(pattern.substr(0, open),
                                  absl::StrFormat("%0*d", static_cast<int>(first.size()), i),
                                  pattern.substr(close + 1)));
    if (!IsLabel(names->back())) {
      *why = absl::StrCat("\"", names->back().substr(0, 70), "\": ", kNameRule);
      return false;
    }
  }
  return true;
}

namespace {

// "10Gbit/s" to bits a second; 0: it is none.
int64_t BitsPerSecond(std::string_view text) {
  constexpr std::string_view kUnit = "bit/s";
  if (text.size() <= kUnit.size() || text.substr(text.size() - kUnit.size()) != kUnit) return 0;
  text.remove_suffix(kUnit.size());
  constexpr std::string_view kPrefixes = "kMGT";
  const size_t power = kPrefixes.find(text.back());
  if (power != std::string_view::npos) text.remove_suffix(1);
  int64_t scale = 1;
  for (size_t i = 0; power != std::string_view::npos && i <= power; ++i) scale *= 1000;
  int64_t number = 0;
  if (text.find_first_not_of("0123456789") != std::string_view::npos ||
      !absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number))
    return 0;
  return number > 1'000'000'000'000'000 / scale ? 0 : number * scale;
}

class ClusterReader {
 public:
  ClusterReader(Document* document, pb::ClusterFile* out) : document_(*document), out_(*out) {}

  void Read() {
    Fields top(document_, document_.root(), "");
    top.ForEachEntry("skus",
                     [&](const YamlNode& key, const YamlNode& value, const std::string& path) {
                       if (MapAndLabel(key, value, path))
                         ReadSku(Fields(document_, value, path), &(*out_.mutable_skus())[key.text]);
                     });
    top.ForEachEntry(
        "storages", [&](const YamlNode& key, const YamlNode& value, const std::string& path) {
          if (MapAndLabel(key, value, path))
            ReadStorage(Fields(document_, value, path), &(*out_.mutable_storages())[key.text]);
        });
    top.ForEach("clusters", [&](const YamlNode& node, const std::string& path) {
      if (!node.IsMap())
        return document_.Add(
            node, path, absl::StrCat("must be a map with a cluster's fields; got ", Shown(node)));
      ReadCluster(Fields(document_, node, path), out_.add_clusters());
    });
    top.Finish();
    if (!top.Has("clusters") && document_.Sound(""))
      document_.AddAtPath("clusters", "is missing; list at least one cluster");
    if (top.Has("clusters") && out_.clusters_size() == 0 && document_.ok())
      document_.AddAtPath("clusters", "is empty; list at least one cluster");
    CheckReferences();
  }

 private:
  bool MapAndLabel(const YamlNode& key, const YamlNode& value, const std::string& path) {
    if (!IsLabel(key.text)) document_.Add(key, path, kNameRule);
    if (!value.IsMap())
      document_.Add(key, path, absl::StrCat("must be a map of fields; got ", Shown(value)));
    return value.IsMap() && IsLabel(key.text);
  }

  void ReadSku(Fields fields, pb::Sku* sku) {
    std::string text;
    int32_t number = 0;
    int64_t value = 0;
    if (fields.Text("flavour", &text)) sku->set_flavour(text);
    if (fields.Int("gpus", 0, 1024, &number)) sku->set_gpus(number);
    if (fields.Int("nvlink_island", 1, 1024, &number)) sku->set_nvlink_island(number);
    if (fields.Milli("cpus", &value)) sku->set_cpus_milli(value);
    if (fields.Size("memory", &value)) sku->set_memory_bytes(value);
    if (fields.Size("disk", &value)) sku->set_disk_bytes(value);
    if (fields.Text("nic", &text)) sku->set_nic(text);
    bool declared = false;
    if (fields.Bool("declared", &declared)) sku->set_declared(declared);
    fields.Finish();
    if (!document_.Sound(fields.path())) return;
    if (sku->gpus() > 0 && sku->flavour().empty())
      document_.AddAtPath(fields.PathOf("flavour"),
                          "is missing; a SKU with GPUs names their flavour, such as h100-80g");
    if (sku->gpus() == 0 && !sku->flavour().empty())
      document_.AddAtPath(fields.PathOf("gpus"), "is missing; a SKU with a flavour has gpus");
    if (!sku->flavour().empty() && !IsLabel(sku->flavour()))
      document_.AddAtPath(fields.PathOf("flavour"), kNameRule);
    if (sku->nvlink_island() > 0 && sku->gpus() % sku->nvlink_island() != 0) {
      document_.AddAtPath(
          fields.PathOf("nvlink_island"),
          absl::StrCat(sku->nvlink_island(), " doesn't divide the SKU's ", sku->gpus(), " GPUs"));
    }
    if (sku->nvlink_island() == 0) sku->set_nvlink_island(sku->gpus());
  }

  void ReadStorage(Fields fields, pb::Storage* storage) {
    std::string text;
    if (fields.Text("path", &text)) storage->set_path(text);
    if (fields.Text("url", &text)) storage->set_url(text);
    fields.TextList("clusters", [&](std::string name) { storage->add_clusters(std::move(name)); });
    if (fields.Text("home", &text)) storage->set_home(text);
    fields.Finish();
    if (!document_.Sound(fields.path())) return;
    const auto& sees = storage->clusters();
    if (!storage->home().empty() &&
        std::find(sees.begin(), sees.end(), storage->home()) == sees.end()) {
      document_.AddAtPath(fields.PathOf("home"),
                          absl::StrCat("\"", storage->home(),
                                       "\" is none of the storage's clusters; name the one where "
                                       "its disks are, or leave it out"));
    }
    if (!storage->path().empty() && storage->path()[0] != '/') {
      document_.AddAtPath(
          fields.PathOf("path"),
          absl::StrCat("\"", storage->path(), "\" is not absolute; start it with /"));
    }
    if (fields.Has("url")) CheckUrl(fields, storage);
    if (!fields.Has("path") && !fields.Has("url"))
      document_.AddAtPath(fields.PathOf("path"),
                          "is missing; a storage is a directory that its clusters' hosts see, or "
                          "an object store (url)");
    if (storage->clusters().empty())
      document_.AddAtPath(fields.PathOf("clusters"),
                          "is missing; list the clusters whose hosts see it");
  }

  void CheckUrl(const Fields& fields, pb::Storage* storage) {
    if (const std::string why = WhyNoObjectPlace(storage->url(), ObjectPlace::kBucketOrPrefix);
        !why.empty()) {
      document_.AddAtPath(
          fields.PathOf("url"),
          absl::StrCat(why, ". The store may be AWS's, or any that speaks its protocol"));
    } else if (!storage->path().empty()) {
      document_.AddAtPath(fields.PathOf("url"),
                          "a storage has a path or a url, not both; make two of it");
    }
    while (!storage->url().empty() && storage->url().back() == '/')
      storage->mutable_url()->pop_back();
  }

  void ReadCluster(Fields fields, pb::ClusterSpec* cluster) {
    std::string text;
    bool open = false;
    if (fields.Text("name", &text)) cluster->set_name(text);
    if (fields.Text("sku", &text)) cluster->set_sku(text);
    if (fields.Text("job_storage", &text)) cluster->set_job_storage(text);
    if (fields.Bool("open", &open)) cluster->set_open(open);
    if (fields.Text("only_user", &text)) {
      cluster->set_only_user(text);
      if (!IsLabel(text)) document_.AddAtPath(fields.PathOf("only_user"), kNameRule);
    }
    if (fields.Text("bandwidth", &text)) {
      cluster->set_bandwidth_bits_per_s(BitsPerSecond(text));
      if (cluster->bandwidth_bits_per_s() == 0) {
        document_.AddAtPath(fields.PathOf("bandwidth"),
                            absl::StrCat("\"", text.substr(0, 70),
                                         "\" is no bandwidth; write whole bits a second with their "
                                         "unit, such as 10Gbit/s or 400Mbit/s"));
      }
    }
    if (std::optional<Fields> rule = fields.Map("quarantine"))
      ReadQuarantine(*rule, cluster->mutable_quarantine());
    fields.TextList("fence_command",
                    [&](std::string word) { cluster->add_fence_command(std::move(word)); });
    int64_t timeout_ns = 0;
    if (ReadSpan(fields, "fence_timeout", kSecond, kHour, &timeout_ns))
      cluster->set_fence_timeout_ns(timeout_ns);
    fields.TextList("host_check",
                    [&](std::string word) { cluster->add_host_check(std::move(word)); });
    if (ReadSpan(fields, "host_check_timeout", kSecond, kHour, &timeout_ns))
      cluster->set_host_check_timeout_ns(timeout_ns);
    fields.ForEachEntry("topology", [&](const YamlNode& block, const YamlNode& racks,
                                        const std::string& path) {
      if (!MapAndLabel(block, racks, path)) return;
      for (size_t i = 0; i < racks.items.size(); ++i) {
        const YamlNode& rack = racks.keys[i];
        const YamlNode& hosts = racks.items[i];
        const std::string at = JoinPath(path, rack.text);
        document_.Note(at, hosts, &rack);
        if (!IsLabel(rack.text)) document_.Add(rack, at, kNameRule);
        if (!hosts.IsList()) {
          document_.Add(
              rack, at,
              absl::StrCat("must be a list of hosts, such as [h01, h02] or [\"h[01-16]\"]; got ",
                           Shown(hosts)));
          continue;
        }
        for (size_t k = 0; k < hosts.items.size(); ++k)
          ReadHost(hosts.items[k], IndexPath(at, k), block.text, rack.text, cluster);
      }
    });
    fields.Finish();
    if (!document_.Sound(fields.path())) return;
    if (cluster->name().empty())
      document_.AddAtPath(fields.PathOf("name"), "is missing; a cluster has a name");
    if (!cluster->name().empty() && !IsLabel(cluster->name()))
      document_.AddAtPath(fields.PathOf("name"), kNameRule);
    if (cluster->job_storage().empty())
      document_.AddAtPath(fields.PathOf("job_storage"),
                          "is missing; name the storage where its jobs' directories live");
    const auto names_host = [](const std::string& word) {
      return word.find("{host}") != std::string::npos;
    };
    const auto is_program = [&](const auto& words, std::string_view name) {
      if (words.empty() || words[0].starts_with('/')) return true;
      document_.AddAtPath(IndexPath(fields.PathOf(name), 0),
                          "must be the absolute path of a program; it is run without a shell");
      return false;
    };
    is_program(cluster->host_check(), "host_check");
    const auto& command = cluster->fence_command();
    if (is_program(command, "fence_command") && !command.empty() &&
        std::none_of(command.begin() + 1, command.end(), names_host)) {
      document_.AddAtPath(fields.PathOf("fence_command"),
                          "doesn't say which host: write {host} where its name belongs");
    }
    if (!fields.Has("topology") && !cluster->open()) {
      document_.AddAtPath(fields.PathOf("topology"),
                          "is missing; list the hosts, or write open: true to let any host join");
    }
  }

  bool ReadSpan(Fields& fields, std::string_view name, int64_t least_ns, int64_t most_ns,
                int64_t* out) {
    if (!fields.Duration(name, out)) return false;
    if (*out >= least_ns && *out <= most_ns) return true;
    document_.AddAtPath(fields.PathOf(name),
                        absl::StrCat("must be from ", FormatDuration(least_ns), " to ",
                                     FormatDuration(most_ns), "; got ", FormatDuration(*out)));
    return false;
  }

  void ReadQuarantine(Fields fields, pb::QuarantineRule* rule) {
    bool off = false;
    int32_t number = 0;
    int64_t span_ns = 0;
    if (fields.Bool("off", &off)) rule->set_off(off);
    if (fields.Int("device_blames", 1, 1000, &number)) rule->set_device_blames(number);
    if (fields.Int("host_blames", 1, 1000, &number)) rule->set_host_blames(number);
    if (ReadSpan(fields, "window", kMinute, 365 * kDay, &span_ns)) rule->set_window_ns(span_ns);
    if (fields.Int("max_percent", 0, 100, &number)) rule->set_max_percent(number);
    if (ReadSpan(fields, "release_after", kSecond, 365 * kDay, &span_ns))
      rule->set_release_after_ns(span_ns);
    fields.Finish();
  }

  // A host or range; or {host: "h[05-06]", sku: a100x4}.
  void ReadHost(const YamlNode& node, const std::string& path, const std::string& block,
                const std::string& rack, pb::ClusterSpec* cluster) {
    std::string pattern, sku, why;
    document_.Note(path, node, nullptr);
    if (node.IsMap()) {
      Fields fields(document_, node, path);
      const bool named = fields.Text("host", &pattern);
      if (fields.Text("sku", &sku)) document_.Note(path + ".sku", node, nullptr);
      fields.Finish();
      if (!fields.Has("host") && document_.Sound(path))
        document_.Add(node, path + ".host", "is missing; write {host: h05, sku: a100x4}");
      if (!named) return;
    } else if (!ReadText(document_, node, path, &pattern)) {
      return;
    }
    std::vector<std::string> names;
    if (!ExpandHosts(pattern, &names, &why))
      return document_.AddAtPath(node.IsMap() ? path + ".host" : path, why);
    if (hosts_ + static_cast<int>(names.size()) > kMaxHosts)
      return document_.Add(node, path, absl::StrCat("more than ", kMaxHosts, " hosts in all"));
    hosts_ += static_cast<int>(names.size());
    for (const std::string& name : names) {
      if (!hosts_of_[cluster].insert(name).second) {
        document_.Add(node, path, absl::StrCat("\"", name, "\" is listed twice in this cluster"));
        return;
      }
      pb::HostSpec* host = cluster->add_hosts();
      host->set_name(name);
      host->set_block(block);
      host->set_rack(rack);
      host->set_sku(sku);
    }
    if (!sku.empty()) sku_uses_.emplace_back(path + ".sku", sku);
  }

  void CheckReferences() {
    std::vector<std::string> skus, storages;
    for (const auto& [name, unused] : out_.skus()) skus.push_back(name);
    for (const auto& [name, unused] : out_.storages()) storages.push_back(name);
    std::sort(skus.begin(), skus.end());
    std::sort(storages.begin(), storages.end());
    std::set<std::string> clusters;
    std::vector<std::string> cluster_names;
    for (int i = 0; i < out_.clusters_size(); ++i) {
      const pb::ClusterSpec& cluster = out_.clusters(i);
      const std::string path = IndexPath("clusters", static_cast<size_t>(i));
      if (!cluster.name().empty() && !clusters.insert(cluster.name()).second) {
        document_.AddAtPath(
            path + ".name",
            absl::StrCat("\"", cluster.name(), "\" is already the name of another cluster"));
      }
      cluster_names.push_back(cluster.name());
      if (!cluster.sku().empty() && out_.skus().count(cluster.sku()) == 0) {
        document_.AddAtPath(path + ".sku",
                            absl::StrCat("no SKU \"", cluster.sku(), "\" under skus.",
                                         DidYouMean(cluster.sku(), skus)));
      }
      const bool needs_sku =
          std::any_of(cluster.hosts().begin(), cluster.hosts().end(),
                      [](const pb::HostSpec& host) { return host.sku().empty(); });
      if (cluster.sku().empty() && needs_sku && document_.Sound(path))
        document_.AddAtPath(path + ".sku", "is missing; name the SKU of its hosts");
      if (cluster.job_storage().empty()) continue;
      const auto storage = out_.storages().find(cluster.job_storage());
      if (storage == out_.storages().end()) {
        document_.AddAtPath(
            path + ".job_storage",
            absl::StrCat("no storage \"", cluster.job_storage(), "\" under storages.",
                         DidYouMean(cluster.job_storage(), storages)));
      } else if (!storage->second.url().empty()) {
        document_.AddAtPath(path + ".job_storage",
                            absl::StrCat("storage ", cluster.job_storage(),
                                         " is an object store, and jobs' directories need a path; "
                                         "it can be a job's checkpoint.storage"));
      } else if (std::find(storage->second.clusters().begin(), storage->second.clusters().end(),
                           cluster.name()) == storage->second.clusters().end() &&
                 !storage->second.clusters().empty()) {
        document_.AddAtPath(path + ".job_storage",
                            absl::StrCat("storage ", cluster.job_storage(), " doesn't list ",
                                         cluster.name(), " under clusters"));
      }
    }
    for (const auto& [path, sku] : sku_uses_) {
      if (out_.skus().count(sku) == 0)
        document_.AddAtPath(
            path, absl::StrCat("no SKU \"", sku, "\" under skus.", DidYouMean(sku, skus)));
    }
    for (const std::string& name : storages) {
      const auto& listed = out_.storages().at(name).clusters();
      for (int k = 0; k < listed.size(); ++k) {
        if (clusters.count(listed[k]) > 0) continue;
        document_.AddAtPath(
            IndexPath(absl::StrCat("storages.", name, ".clusters"), static_cast<size_t>(k)),
            absl::StrCat("no cluster \"", listed[k], "\" in this file.",
                         DidYouMean(listed[k], cluster_names)));
      }
    }
  }

  Document& document_;
  pb::ClusterFile& out_;
  int hosts_ = 0;
  std::map<const pb::ClusterSpec*, std::set<std::string>> hosts_of_;
  std::vector<std::pair<std::string, std::string>> sku_uses_;  // path, SKU
};

void AddDevices(int32_t gpus, int32_t island, std::string_view uuids, pb::Inventory* out) {
  for (int32_t i = 0; i < gpus; ++i) {
    pb::Device* device = out->add_devices();
    device->set_index(i);
    if (!uuids.empty()) device->set_uuid(absl::StrCat(std::string(uuids), i));
    device->set_island(island > 0 ? i / island : 0);
    device->set_healthy(true);
  }
}

}  // namespace

bool ParseClusterFile(std::string_view text, std::string_view filename, pb::ClusterFile* out,
                      std::vector<Problem>* problems) {
  out->Clear();
  Document document;
  if (document.Parse(text, filename)) ClusterReader(&document, out).Read();
  return document.Deliver(problems);
}

const pb::Sku* SkuOf(const pb::ClusterFile& file, const pb::ClusterSpec& cluster,
                     const pb::HostSpec& host) {
  const auto found = file.skus().find(host.sku().empty() ? cluster.sku() : host.sku());
  return found == file.skus().end() ? nullptr : &found->second;
}

void FillInventory(const pb::Sku& sku, std::string_view uuids, pb::Inventory* out) {
  out->Clear();
  out->set_flavour(sku.flavour());
  AddDevices(sku.gpus(), sku.nvlink_island(), uuids, out);
  out->set_cpus_milli(sku.cpus_milli());
  out->set_memory_bytes(sku.memory_bytes());
  out->set_disk_bytes(sku.disk_bytes());
  out->set_declared(sku.declared());
  AnnounceAll(out);
}

void AnnounceAll(pb::Inventory* inventory) {
  inventory->set_gives_secrets(true);
  inventory->set_unpacks(true);
  inventory->set_enters_images(true);
  inventory->set_opens_tunnels(true);
}

std::string HowDiffers(const pb::Sku& sku, const pb::Inventory& inventory) {
  std::vector<std::string> how;
  const auto flavour = [](const std::string& name) {
    return name.empty() ? std::string("no flavour") : name;
  };
  if (sku.flavour() != inventory.flavour())
    how.push_back(
        absl::StrCat(flavour(inventory.flavour()), " instead of ", flavour(sku.flavour())));
  if (sku.gpus() != inventory.devices_size())
    how.push_back(absl::StrCat(inventory.devices_size(),
                               inventory.devices_size() == 1 ? " device" : " devices",
                               " instead of ", sku.gpus()));
  if (sku.declared() != inventory.declared())
    how.emplace_back(inventory.declared() ? "declared stand-ins instead of devices"
                                          : "devices instead of declared stand-ins");
  const auto off = [](int64_t has, int64_t wanted) {
    return has < wanted - wanted / 10 || (wanted > 0 && has > wanted + wanted / 10);
  };
  if (inventory.cpus_milli() < sku.cpus_milli() ||
      (sku.cpus_milli() > 0 && inventory.cpus_milli() > sku.cpus_milli()))
    how.push_back(absl::StrCat(FormatMilli(inventory.cpus_milli()), " cpus instead of ",
                               FormatMilli(sku.cpus_milli())));
  if (off(inventory.memory_bytes(), sku.memory_bytes()))
    how.push_back(absl::StrCat(FormatSize(inventory.memory_bytes()), " memory instead of ",
                               FormatSize(sku.memory_bytes())));
  if (off(inventory.disk_bytes(), sku.disk_bytes()))
    how.push_back(absl::StrCat(FormatSize(inventory.disk_bytes()), " disk instead of ",
                               FormatSize(sku.disk_bytes())));
  return absl::StrJoin(how, ", ");
}

void KeepTo(const pb::Sku& sku, pb::Inventory* inventory) {
  const bool same = inventory->flavour() == sku.flavour();
  if (!same) inventory->clear_flavour();
  const int count = same ? sku.gpus() : 0;
  if (inventory->devices_size() > count)
    inventory->mutable_devices()->DeleteSubrange(count, inventory->devices_size() - count);
  const auto at_most = [](int64_t has, int64_t said) {
    return said > 0 ? std::min(has, said) : has;
  };
  inventory->set_cpus_milli(at_most(inventory->cpus_milli(), sku.cpus_milli()));
  inventory->set_memory_bytes(at_most(inventory->memory_bytes(), sku.memory_bytes()));
  inventory->set_disk_bytes(at_most(inventory->disk_bytes(), sku.disk_bytes()));
}

HostSkus::HostSkus(pb::ClusterFile file) : file_(std::move(file)) {
  for (const pb::ClusterSpec& spec : file_.clusters()) {
    Cluster& cluster = clusters_[spec.name()];
    cluster.sku = SkuOf(file_, spec, pb::HostSpec::default_instance());
    for (const pb::HostSpec& host : spec.hosts()) {
      if (!host.sku().empty()) cluster.others[host.name()] = SkuOf(file_, spec, host);
    }
  }
}

std::string HostSkus::Keep(const std::string& cluster, const std::string& host,
                           pb::Inventory* inventory) const {
  const auto found = clusters_.find(cluster);
  if (found == clusters_.end()) return "";
  const auto other = found->second.others.find(host);
  const pb::Sku* sku = other == found->second.others.end() ? found->second.sku : other->second;
  if (sku == nullptr) return "";
  std::string how = HowDiffers(*sku, *inventory);
  KeepTo(*sku, inventory);
  return how;
}

bool ParseHostInventory(std::string_view text, std::string_view filename, pb::Inventory* out,
                        std::vector<Problem>* problems) {
  out->Clear();
  out->set_declared(true);
  Document document;
  if (document.Parse(text, filename)) {
    Fields fields(document, document.root(), "");
    std::string value;
    int32_t gpus = 0, island = 0;
    int64_t number = 0, gpu_memory_bytes = 0;
    if (fields.Text("flavour", &value)) out->set_flavour(value);
    fields.Int("gpus", 0, 1024, &gpus);
    fields.Int("nvlink_island", 1, 1024, &island);
    fields.Size("gpu_memory", &gpu_memory_bytes);
    if (fields.Milli("cpus", &number)) out->set_cpus_milli(number);
    if (fields.Size("memory", &number)) out->set_memory_bytes(number);
    if (fields.Size("disk", &number)) out->set_disk_bytes(number);
    if (fields.Text("address", &value)) out->set_address(value);
    fields.Finish();
    if (document.Sound("")) {
      if (gpus > 0 && out->flavour().empty())
        document.AddAtPath("flavour", "is missing; name the GPUs' flavour, such as cpu-slot");
      if (gpus == 0 && !out->flavour().empty())
        document.AddAtPath("gpus", "is missing; a host with a flavour has gpus");
      if (!out->flavour().empty() && !IsLabel(out->flavour()))
        document.AddAtPath("flavour", kNameRule);
      if (island > 0 && gpus % island != 0)
        document.AddAtPath("nvlink_island",
                           absl::StrCat(island, " doesn't divide the host's ", gpus, " GPUs"));
      if (out->cpus_milli() == 0)
        document.AddAtPath("cpus", "is missing; say how many cores jobs may use");
      if (out->memory_bytes() == 0)
        document.AddAtPath("memory", "is missing; say how much memory jobs may use, such as 4GiB");
    }
    AddDevices(gpus, island, "declared-", out);
    for (pb::Device& device : *out->mutable_devices()) device.set_memory_bytes(gpu_memory_bytes);
  }
  return document.Deliver(problems);
}

}  // namespace muster
