// A stack of its own for each emulated thread, and the switch between it and the scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__) || !defined(__linux__)
#error "the emulator switches stacks by hand, which it can do on x86-64 Linux only"
#endif

// Saves the registers that a call keeps and the stack pointer, and goes on where `to` was saved.
// ucontext does the same with two system calls each time, of which a test makes millions.
extern "C" void ek_switch_stack(void** saved, void* to);
__asm__(
    ".text\n"
    ".weak ek_switch_stack\n"
    ".hidden ek_switch_stack\n"
    ".type ek_switch_stack,@function\n"
    "ek_switch_stack:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp,(%rdi)\n"
    "  movq %rsi,%rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size ek_switch_stack,.-ek_switch_stack\n");

namespace emulator {

class Fiber {
 public:
  // The next `resume` calls `entry`, which must end in `finish`.
  void start(void (*entry)()) {
    if (!stack_) {
      stack_.reset(new char[size]);
    }
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack_.get(), size);  // of the thread that had it before
#endif
    auto top = reinterpret_cast<uintptr_t>(stack_.get() + size) & ~uintptr_t{15};
    void** frame = reinterpret_cast<void**>(top);
    *--frame = nullptr;  // so that `entry` finds the stack aligned as behind a call
    *--frame = reinterpret_cast<void*>(entry);
    for (int saved_register = 0; saved_register < 6; ++saved_register) {
      *--frame = nullptr;
    }
    place_ = frame;
  }

  // Of the scheduler: runs the fiber until it suspends.
  void resume() {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_.get(), size);
    ek_switch_stack(&scheduler_place, place_);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    ek_switch_stack(&scheduler_place, place_);
#endif
  }

  // Of the fiber itself: back to the scheduler.
  void suspend() { leave(false); }
  [[noreturn]] void finish() {
    leave(true);
    __builtin_trap();
  }

  // The first thing that `entry` does.
  static void entered() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
#endif
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t page = 4 * 1024, pages = 48;
#else
  static constexpr size_t page = 4 * 1024, pages = 16;
#endif
  // Not a power of two, so that neighbouring stacks share no cache sets.
  static constexpr size_t size = page * pages + 576;

  void leave([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, scheduler_stack,
                                   scheduler_stack_size);
    ek_switch_stack(&place_, scheduler_place);
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_stack_size);
#else
    ek_switch_stack(&place_, scheduler_place);
#endif
  }

  static inline void* scheduler_place = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  static inline const void* scheduler_stack = nullptr;
  static inline size_t scheduler_stack_size = 0;
#endif
  std::unique_ptr<char[]> stack_;
  void* place_ = nullptr;
};

}  // namespace emulator
