// What an engine's collectives moved, which of them is under way, and when each began and ended.

#ifndef TENSOROPT_EXEC_ENGINES_METER_H_
#define TENSOROPT_EXEC_ENGINES_METER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace tensoropt {

// The order is that of KINDS in payload.py.
enum Kind { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kPermute, kMove, kKinds };

inline int64_t NowNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The processor time of this thread: a rank that waits for a core takes none.
inline int64_t ProcessorNanoseconds() {
  timespec now{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) return 0;
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

// What one engine has moved, and what it is doing now; read from Python while a kernel runs.
class Meter {
 public:
  void Add(Kind kind, int64_t bytes) { bytes_[kind].fetch_add(bytes, std::memory_order_relaxed); }

  void Read(int64_t* bytes) const {
    for (int kind = 0; kind < kKinds; ++kind) bytes[kind] = bytes_[kind].load(std::memory_order_relaxed);
  }

  void Reset() {
    for (auto& bytes : bytes_) bytes.store(0, std::memory_order_relaxed);
  }

  void Enter(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    current_.assign(name);  // keeps its capacity: no allocation after the first few
    since_ns_ = NowNanoseconds();
    if (journal_.capacity() > 0) processor_since_ns_ = ProcessorNanoseconds();
    ++entered_;
  }

  void Leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (journal_.size() + 3 <= journal_.capacity()) {
      // Read before the time, as it is read after the time on entry: what interrupts between the two is in neither.
      const int64_t processor_ns = ProcessorNanoseconds() - processor_since_ns_;
      journal_.push_back(since_ns_);
      journal_.push_back(NowNanoseconds());
      journal_.push_back(processor_ns);
    }
    since_ns_ = 0;
  }

  // Forgets what was noted, and notes when each of so many collectives begins and ends from now on, and its processor
  // time.
  void StartJournal(int64_t collectives) {
    std::lock_guard<std::mutex> lock(mutex_);
    journal_ = std::vector<int64_t>();
    journal_.reserve(3 * collectives);
  }

  // Copies what was noted into `times` unless it is null; returns how many numbers that are.
  int64_t ReadJournal(int64_t* times) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (times != nullptr) std::copy(journal_.begin(), journal_.end(), times);
    return static_cast<int64_t>(journal_.size());
  }

  // Returns how many collectives were entered; *waiting_s is negative when none is under way.
  int64_t State(char* name, int64_t capacity, double* waiting_s) {
    std::lock_guard<std::mutex> lock(mutex_);
    *waiting_s = since_ns_ == 0 ? -1.0 : (NowNanoseconds() - since_ns_) * 1e-9;
    if (capacity > 0) {
      const size_t length = std::min(current_.size(), static_cast<size_t>(capacity - 1));
      std::memcpy(name, current_.data(), length);
      name[length] = '\0';
    }
    return entered_;
  }

 private:
  std::atomic<int64_t> bytes_[kKinds] = {};
  std::mutex mutex_;
  std::string current_;
  int64_t since_ns_ = 0;
  int64_t processor_since_ns_ = 0;
  int64_t entered_ = 0;
  std::vector<int64_t> journal_;
};

class MeterScope {
 public:
  MeterScope(Meter* meter, const std::string& name) : meter_(meter) { meter_->Enter(name); }
  ~MeterScope() { meter_->Leave(); }
  MeterScope(const MeterScope&) = delete;
  MeterScope& operator=(const MeterScope&) = delete;

 private:
  Meter* meter_;
};

// Meters are never freed: kernels may outlive the engine that made their graph. A deque keeps addresses stable.
inline std::mutex meters_mutex;
inline std::deque<Meter>& Meters() {
  static auto* meters = new std::deque<Meter>();
  return *meters;
}

inline Meter* FindMeter(int64_t number) {
  std::lock_guard<std::mutex> lock(meters_mutex);
  auto& meters = Meters();
  return number >= 0 && number < static_cast<int64_t>(meters.size()) ? &meters[number] : nullptr;
}

}  // namespace tensoropt

#endif  // TENSOROPT_EXEC_ENGINES_METER_H_
