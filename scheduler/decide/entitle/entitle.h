// The entitled set (docs/scheduling.md §1): which units may run now, and the pool that each is
// charged to.
//
// A *unit* is a gang (a gang at its minimum size) or one growth step of an elastic gang: one
// worker, or as many as its sizes are multiples of. Each turn accepts the best candidate below the
// root. A leaf's candidate is the first unit of its order that fits what the queues above it may
// still take; among a queue's children the one with the smallest share wins, those within their
// guarantees strictly first.
//
// The method: a queue under each combination of "within the guarantee, or not" of itself and the
// queues above is a *branch*. Under one branch allowances only shrink from turn to turn, so a unit
// that doesn't fit there never will again: each leaf branch keeps a cursor. Candidates are cached;
// a turn looks again at the accepted unit's path, and at the candidates whose demand the room of
// the pool, a limit or a guarantee on that path fell below
// (docs/decisions/013-what-a-decider-keeps.md).
//
// What is borrowed of CPUs, without devices, has its turns after everything else (`phase_` 1): it
// gets what the units with devices leave of their clusters' CPUs
// (docs/decisions/046-cpus-beside-devices.md).
//
// While every guarantee can be kept at once (children's sums within their parents', the root's
// within what is healthy), what a leaf gets within its guarantee follows from that leaf alone. This
// *guaranteed prefix* is kept from run to run, and worked out again for leaves that something
// happened to: a run begins where all prefixes are charged, and only has to accept what is borrowed
// (docs/decisions/037-guaranteed-parts-are-kept.md).
//
// Inside of scheduler/decide.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/decide/model/model.h"

namespace muster {

struct QuotaNode {
  int32_t parent = -1;
  std::vector<int32_t> children;       // none: a leaf
  std::vector<FlavourQuota> flavours;  // parallel to Model::flavours
  std::vector<int64_t>
      pools;  // guarantee in each of Model::pools; empty: only the flavours' sums count
};
using QuotaTree = std::vector<QuotaNode>;  // as State's queues: the root first

// The queues' quota, in the terms of the model.
QuotaTree ReadQuotas(const State& state, const Model& model);

// Keeps the units in order and the tree of branches between runs. One thread.
class Entitlement {
 public:
  // Takes all gangs of the model.
  void Reset(QuotaTree quotas, const Model& model);
  // A gang stops being one, or becomes one: of its leaf, with pools. Call Remove before its figures
  // change, Add after it, with nothing in the gang's part of the entitled set.
  void Remove(const Model& model, int32_t gang);
  void Add(const Model& model, int32_t gang);
  // The gang's binding changed, nothing else.
  void Rebind(const Model& model, int32_t gang);
  // Gang b is gang to[b] now; their order is the same.
  void Renumber(const std::vector<int32_t>& to);

  // Fills the gangs' part of the entitled set, `charged_milli` of the pools and `entitled` of the
  // queues. Returns the gangs whose part of the set is another one than it was.
  std::vector<int32_t> Run(Model* model);
  // Puts gangs of S in order of their acceptance in the last run.
  void Sort(const Model& model, std::vector<int32_t>* gangs);

  // The last run began with the leaves' guaranteed prefixes. For tests.
  bool began_with_prefixes() const { return with_prefixes_; }

 private:
  // A gang of a leaf with its growth. What a cursor asks is in its first line.
  struct alignas(64) Unit {
    int64_t demand_milli = 0;  // of the gang
    int64_t growth_milli = 0;  // of each growth step
    int64_t cpus_milli = 0,
            growth_cpus_milli = 0;  // beside devices, where a queue's quota counts them
    int64_t submit_ns = 0;
    int32_t gang = 0;
    int32_t extra = 0;   // growth steps at most
    int32_t bound = -1;  // pool; -1 also if it isn't one of its list
    int32_t pools_at = 0,
            pools = 0;  // its list in Leaf::pools, and behind that the opened ones of it
    int32_t opened = 0;
    int32_t growth_at = -1;  // index in Leaf::growing
    int32_t group = -1;  // first unit of its job, if where one of them is charged binds the others
    struct Part {        // of the entitled set
      bool taken = false, guaranteed = false, charged_as_bound = false;
      int32_t charge = -1, growth = 0;  // steps
      bool operator==(const Part&) const = default;
    };
    Part prefix;             // what its leaf's guaranteed prefix grants it
    int32_t prefix_at = -1;  // index in Leaf::prefix of its acceptance
    // Of the run:
    Part part;
    int32_t order = 0;
    int32_t late_key = -1;  // in late_keys_
    int32_t group_cluster = -1;
    Part published;                                           // what the gang in the model has
    int64_t host_cpus_milli = 0, growth_host_cpus_milli = 0;  // beside devices
  };
  // The largest key in a line of units up to some unit, history apart. Of several lines the one
  // with the smallest key at its head goes next, so this tells when the unit was accepted.
  struct LineKey {
    int64_t numerator = 0, denominator = 1, submit_ns = 0;
    int32_t gang = 0;
    bool growth = false;
  };
  // A unit accepted within its leaf's guarantee.
  struct Acceptance {
    LineKey line_key;  // of the leaf
    int64_t milli = 0, submit_ns = 0;
    int32_t gang = 0;
    int16_t flavour = 0, charged = 0;  // of the candidate's pool; of the one that it is charged to
    bool growth = false;
  };
  struct Leaf {
    std::vector<int32_t> members;  // gangs, by priority, band, submission, id
    bool stale = true;             // `members` or their figures changed
    std::vector<Unit> units;       // parallel to members
    std::vector<uint8_t> taken;    // likewise: Unit::part.taken, close together for the cursors
    std::vector<int32_t> pools;
    std::vector<int32_t> growing;    // units that can grow, in order
    int64_t least_milli = 0;         // smallest demand of a unit
    bool counts_cpus = false;        // some unit takes CPUs beside devices, and a quota counts them
    bool wants_cpus = false;         // some unit may be charged to a pool of CPUs
    std::vector<Acceptance> prefix;  // its guaranteed prefix, in order
    std::vector<uint8_t> prefix_taken;                          // as `taken` after it
    std::vector<int64_t> prefix_used;                           // by flavour
    std::vector<std::pair<int32_t, int64_t>> prefix_pools;      // charged to each
    std::vector<std::pair<int32_t, int64_t>> prefix_host_cpus;  // CPUs beside that, by pool of CPUs
    bool fresh = false;                                         // read in this run
    bool merged = false;  // the prefix is in Promised::entries of the queue above
  };
  // The guaranteed prefixes of the leaves below a child of the root, merged in order.
  struct Promised {
    struct Entry {
      LineKey line_key;
      int32_t leaf = 0, at = 0;  // index in Leaf::prefix
    };
    std::vector<Entry> entries;
    std::vector<int64_t> history;  // of its leaves, by which equal keys are ordered here
  };
  // Branches below an interior branch: those within their guarantees, or all; one a child, in the
  // tree's order.
  struct Pass {
    bool made = false, built = false;
    int32_t first = 0, count = 0;
    int32_t winners = 0;  // tournament: winners_[winners + 1] is the best child's index
  };
  struct Branch {
    int32_t node = 0, parent = -1, index = 0, depth = 0;
    bool guaranteed = false, leaf = false;
    bool within = false;         // it and all above it are guaranteed ones
    bool promised = false;       // it or one above it is a guaranteed one
    Pass pass[2];                // interior: 0 = within guarantees
    int32_t max_demand_at = -1;  // interior: in max_demand_below_, by flavour
    int32_t max_pool_demand_at =
        -1;  // interior, guaranteed per pool: in max_pool_demand_below_, by pool
    // Of the run:
    bool open = false, dirty = false;  // evaluated; to be looked at again
    int32_t best = -1;                 // the leaf branch of its candidate
    int32_t position = 0,
            choice = 0;  // leaf: cursor: units, then growing units; index in the unit's list
    int32_t unit = -1, pool = -1, flavour = -1;  // leaf: its candidate
    bool growth = false;
    int64_t demand_milli = 0, cpus_milli = 0;
    int32_t listed_at = -1;  // leaf: index in listed_[pool]
  };
  // What a branch's candidate is compared by among its siblings.
  struct Key {
    int32_t rank = kNoCandidate;  // 0: within the guarantee, or without quota; 1: borrows; 2:
                                  // borrows with weight 0
    int64_t numerator = 0, denominator = 1;
    int64_t history = 0, submit_ns = 0;
    int32_t gang = 0;
    bool growth = false;
  };
  static constexpr int32_t kNoCandidate = 3;
  static bool Less(const Key& a, const Key& b);

  void Read(const Model& model, Leaf* leaf);
  void StartRun(const Model& model);
  void StartUnit(Unit* unit) const;
  void StartBranches();
  // What the pool has for the branch's candidates.
  int64_t RoomFor(const Branch& branch, int32_t pool) const;
  static int32_t EndOf(const Leaf& leaf);  // a cursor that has been everywhere
  int32_t AddBranch(int32_t node, int32_t parent, int32_t index, bool guaranteed);
  bool Fits(int32_t branch, int32_t pool, int64_t demand_milli, int64_t cpus_milli) const;
  bool GroupAllows(const Leaf& leaf, const Unit& unit, int32_t pool) const;
  void BindGroup(int32_t node, int32_t first, int32_t cluster);
  void Evaluate(int32_t b);
  void Advance(int32_t b);
  void SetCandidate(int32_t b, int32_t unit, bool growth, int32_t pool);
  void Unlist(int32_t b);
  void Select(int32_t b);
  void Build(int32_t b, int p);
  int32_t Winner(const Pass& pass) const;
  int32_t Better(const Pass& pass, int32_t i, int32_t j) const;
  // What the branch's queue may still take of the flavour.
  int64_t Allowed(const Branch& branch, int32_t flavour) const;
  // Raises `key` to the queue's share of the flavour.
  void Dominate(const Branch& branch, int32_t flavour, Key* key) const;
  void Charge(int32_t node, int32_t flavour, int64_t milli);
  void Replay(const Pass& pass, int32_t index);
  void SetKey(int32_t b);
  void Mark(int32_t b);
  void Accept(int32_t order);
  void ChargePath(int32_t node, int32_t pool, int64_t demand_milli, int64_t cpus_milli);
  void EvaluateMarked();
  void CheckPool(int32_t pool);
  int64_t CheckBelow(int32_t b, int32_t flavour, int64_t allowed_milli);
  int64_t CheckBelowInPool(int32_t b, int32_t pool, int64_t allowed_milli);

  // guaranteed_prefix.cc
  bool Nests(const Model& model);
  bool CanBeginWithPrefixes(const Model& model) const;
  void AcceptPrefix(int32_t node);
  void ChargePrefixes();
  void KeepLineKey(int32_t b, Unit* unit);
  static bool Earlier(const LineKey& a, int64_t a_history, const LineKey& b, int64_t b_history);
  const Promised& PromisedTo(const Model& model, int32_t node);

  QuotaTree quotas_;
  std::vector<Leaf> leaves_;      // by queue node
  std::vector<Branch> branches_;  // [0] is the root's; others are made when they are first needed
  std::vector<std::vector<int32_t>> branches_of_;  // by queue node
  std::vector<int32_t> winners_;
  std::vector<int32_t> pool_at_;  // by queue node: of its row in pool_guarantee_, -1: none
  std::vector<int64_t> pool_guarantee_;
  std::vector<int32_t>
      cpu_pool_;  // by pool of devices: that of its cluster's CPUs; -1: it is one, or there is none
  bool defers_ = false;  // some cluster has both: what borrows CPUs comes last
  int32_t flavours_ = 0, pools_ = 0;

  std::vector<FlavourQuota> quota_;  // [node * flavours_ + flavour]: of quotas_
  bool nests_ = false;  // guarantees nest, two levels of them: leaves' guaranteed prefixes are kept
  std::vector<int64_t> promised_milli_;  // by pool: to the root's children together
  std::vector<Promised> promised_;       // by queue node; of the root's children that are no leaves
  std::vector<int32_t> unit_at_;         // by gang: index in its leaf
  bool with_prefixes_ = false;           // the last run began with the prefixes
  std::vector<std::pair<int32_t, int32_t>>
      changed_;  // leaf and unit: what it gave beside them, some of them twice
  std::vector<LineKey>
      late_keys_;  // of the gangs that it accepted within a guarantee of a child of the root
  std::vector<LineKey> latest_keys_;  // by queue node: of these children, in the run

  // Of the run.
  const Model* m_ = nullptr;
  std::vector<Key> keys_;  // by branch
  int phase_ = 0;
  std::vector<int64_t> room_;       // by pool
  std::vector<int64_t> host_cpus_;  // by pool of CPUs: what units with devices take of them
  std::vector<int64_t> used_;       // [node * flavours_ + flavour]
  std::vector<int64_t> under_limit_, under_guarantee_;             // what is left, likewise
  std::vector<int64_t> under_pool_;                                // likewise of pool_guarantee_
  std::vector<int64_t> max_demand_below_, max_pool_demand_below_;  // at least the largest
                                                                   // among candidates below
  std::vector<std::vector<int32_t>>
      listed_;  // by pool: leaf branches whose candidate would be charged there
  std::vector<int64_t> listed_max_demand_;   // by pool: at least their largest demand
  std::vector<std::vector<int32_t>> dirty_;  // by depth
};

}  // namespace muster
