// The threads of one block, one fiber each, and what they wait at.
//
// A thread runs until it waits: at a barrier of its block or at a collective of its warp. The order
// in which threads take their turns is forward, reverse or shuffled, so that a result that depends
// on it, as where a barrier is missing, differs from order to order. The rules are those of
// compute-sanitizer, which are stricter than what some hardware lets pass: a barrier is for every
// thread of the block, at one place in the source, and a collective for every lane of its mask.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fiber.hpp"

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the thread whose turn it is.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace emulator {

constexpr unsigned warp_size = 32;

struct Site {
  const char* file;
  int line;
  bool operator==(const Site& other) const {
    return line == other.line && std::strcmp(file, other.file) == 0;
  }
  std::string name() const { return std::string(file) + ":" + std::to_string(line); }
};

enum class State { ready, at_barrier, at_collective, finished };

struct Thread {
  Fiber fiber;
  uint3 index;
  unsigned lane, warp;
  State state;
  Site site;            // what it waits at
  uint32_t mask;        // of the collective
  alignas(16) char posted[16];
  const char* received;  // what all lanes of the mask have posted, 16 bytes each
};

// 0: forward, 1: reverse, else the seed of a shuffle.
inline unsigned order = 0;

class Turns {
 public:
  explicit Turns(unsigned count) : places_(count) {
    for (unsigned i = 0; i < count; ++i) {
      places_[i] = order == 1 ? count - 1 - i : i;
    }
  }

  const std::vector<unsigned>& next() {
    if (order > 1) {
      for (unsigned i = static_cast<unsigned>(places_.size()); i > 1; --i) {
        std::swap(places_[i - 1], places_[random() % i]);
      }
    }
    return places_;
  }

 private:
  unsigned random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>(state_ >> 33);
  }

  std::vector<unsigned> places_;
  uint64_t state_ = order;
};

class Block {
 public:
  // Runs `body` on every thread of a block of `blockDim`. Empty, or what went wrong.
  template <typename Body>
  std::string run(const Body& body) {
    body_ = [](const void* given) { (*static_cast<const Body*>(given))(); };
    given_ = &body;
    start();
    Turns warps((count_ + warp_size - 1) / warp_size), lanes(warp_size);
    for (bool ran = true; ran && fault_.empty();) {
      ran = false;
      for (const unsigned warp : warps.next()) {
        // As far as it can go, so that one that should wait for the others does not by chance.
        while (run_lanes(warp, lanes.next())) {
          ran = true;
        }
      }
    }
    current = nullptr;
    if (fault_.empty() && finished_ != count_) {
      fault_ = "threads wait for others that never come: " + whereabouts();
    }
    return fault_;
  }

  // Returns how many threads of the block have come with `vote`.
  int barrier(Site site, bool vote = false) {
    Thread& self = *current;
    self.state = State::at_barrier;
    self.site = site;
    votes_ += vote;
    if (++at_barrier_ < count_) {
      self.fiber.suspend();
      return counted_;
    }
    at_barrier_ = 0;
    counted_ = votes_;
    votes_ = 0;
    for (unsigned i = 0; i < count_; ++i) {
      if (!(threads_[i].site == site)) {
        fault("one barrier was reached at two places: " + whereabouts());
        stop();
      }
      threads_[i].state = State::ready;
    }
    return counted_;
  }

  // Meets the other lanes of `mask`; returns what each has posted, 16 bytes a lane.
  const char* collective(uint32_t mask, const void* value, size_t bytes, Site site) {
    Thread& self = *current;
    self.state = State::at_collective;
    self.site = site;
    self.mask = mask;
    std::memcpy(self.posted, value, bytes);
    if (!(mask >> self.lane & 1)) {
      fault("a lane is not in the mask of its own collective at " + site.name());
      stop();
    }
    Thread* warp = &threads_[self.warp * warp_size];
    bool all = true;
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      if (mask >> lane & 1) {
        const bool exists = self.warp * warp_size + lane < count_;
        all = all && exists && warp[lane].state == State::at_collective &&
              warp[lane].mask == mask && warp[lane].site == site;
      }
    }
    if (!all) {
      self.fiber.suspend();
      return self.received;
    }
    // Of a ring, since a lane may be on its way to the next collective before others have read.
    constexpr unsigned ring = 64;
    std::vector<Received>& buffers = received_[self.warp];
    buffers.resize(ring);
    Received& buffer = buffers[releases_++ % ring];
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      if (mask >> lane & 1) {
        std::memcpy(buffer.lanes + 16 * lane, warp[lane].posted, 16);
        warp[lane].received = buffer.lanes;
        warp[lane].state = State::ready;
      }
    }
    return buffer.lanes;
  }

  // Ends the block, from one of its threads: in two steps, since a stack that is left for good
  // keeps what it has allocated.
  void fault(const std::string& what) { fault_ = what; }
  [[noreturn]] void stop() { current->fiber.finish(); }

  static inline Block* running = nullptr;
  static inline Thread* current = nullptr;

 private:
  struct Received {
    char lanes[16 * warp_size];
  };

  // Whether any was ready.
  bool run_lanes(unsigned warp, const std::vector<unsigned>& lanes) {
    bool ran = false;
    for (const unsigned lane : lanes) {
      const unsigned place = warp * warp_size + lane;
      if (place < count_ && threads_[place].state == State::ready && fault_.empty()) {
        current = &threads_[place];
        threadIdx = current->index;
        current->fiber.resume();
        ran = true;
      }
    }
    return ran;
  }

  void start() {
    const dim3& size = blockDim;
    count_ = size.x * size.y * size.z;
    if (threads_.size() < count_) {
      threads_ = std::vector<Thread>(count_);
    }
    received_.resize((count_ + warp_size - 1) / warp_size);
    at_barrier_ = finished_ = 0;
    votes_ = 0;
    fault_.clear();
    running = this;
    for (unsigned i = 0; i < count_; ++i) {
      Thread& thread = threads_[i];
      thread.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
      thread.lane = i % warp_size;
      thread.warp = i / warp_size;
      thread.state = State::ready;
      thread.fiber.start(&enter);
    }
  }

  static void enter() {
    Fiber::entered();
    running->body_(running->given_);
    current->state = State::finished;
    ++running->finished_;
    current->fiber.finish();
  }

  std::string whereabouts() const {
    std::map<std::string, unsigned> places;
    for (unsigned i = 0; i < count_; ++i) {
      const Thread& thread = threads_[i];
      ++places[thread.state == State::finished     ? "have finished"
               : thread.state == State::at_barrier ? "at the barrier " + thread.site.name()
                                                   : "at the collective " + thread.site.name()];
    }
    std::string all;
    for (const auto& [place, threads] : places) {
      all += (all.empty() ? "" : ", ") + std::to_string(threads) + " " + place;
    }
    return all;
  }

  std::vector<Thread> threads_;
  std::vector<std::vector<Received>> received_;
  unsigned count_ = 0, at_barrier_ = 0, finished_ = 0, releases_ = 0;
  int votes_ = 0, counted_ = 0;
  void (*body_)(const void*) = nullptr;
  const void* given_ = nullptr;
  std::string fault_;
};

}  // namespace emulator
