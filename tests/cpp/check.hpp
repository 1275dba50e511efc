// Checks that count failures and print the first ones of each place, and a main that runs the tests.
#pragma once

#include <cmath>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "ensemble_kernels/isa.hpp"

namespace check {

struct Test {
  const char* name;
  std::function<void()> run;
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int failures = 0;
inline long checks = 0;
inline std::string context;  // named with each failure: the instruction set, the case

inline void failed(const char* file, int line, const std::string& what) {
  constexpr int shown = 20;
  if (failures++ < shown) {
    std::printf("%s:%d: %s [%s]\n", file, line, what.c_str(), context.c_str());
  }
}

template <typename A, typename B>
std::string both(const char* text, const A& left, const B& right) {
  std::ostringstream out;
  out.precision(17);
  out << text << ": " << left << " and " << right;
  return out.str();
}

inline int run() {
  for (const Test& test : tests()) {
    const int before = failures;
    const long checks_before = checks;
    context = test.name;
    test.run();
    std::printf("%-44s %s, %ld checks\n", test.name, failures == before ? "ok" : "FAILED",
                checks - checks_before);
    if (checks == checks_before) {
      failed(test.name, 0, "checked nothing");
    }
  }
  std::printf("%d failures\n", failures);
  return failures == 0 && !tests().empty() ? 0 : 1;
}

struct Registrar {
  Registrar(const char* name, std::function<void()> run) { tests().push_back({name, run}); }
};

}  // namespace check

#define EK_JOIN2(a, b) a##b
#define EK_JOIN(a, b) EK_JOIN2(a, b)
#define TEST(name)                                             \
  static void name();                                          \
  static check::Registrar EK_JOIN(registrar_, name)(#name, name); \
  static void name()

#define CHECK(condition)                             \
  do {                                               \
    ++check::checks;                                 \
    if (!(condition)) {                              \
      check::failed(__FILE__, __LINE__, #condition); \
    }                                                \
  } while (0)

#define CHECK_EQUAL(left, right)                                                          \
  do {                                                                                    \
    ++check::checks;                                                                      \
    const auto left_ = (left);                                                            \
    const auto right_ = (right);                                                          \
    if (!(left_ == right_)) {                                                             \
      check::failed(__FILE__, __LINE__, check::both(#left " == " #right, left_, right_)); \
    }                                                                                     \
  } while (0)

// Equal up to `tolerance`; NaN and infinities must be the same.
#define CHECK_CLOSE(left, right, tolerance)                                               \
  do {                                                                                    \
    ++check::checks;                                                                      \
    const double left_ = (left), right_ = (right);                                        \
    const bool same = left_ == right_ || (left_ != left_ && right_ != right_);            \
    if (!same && !(std::fabs(left_ - right_) <= (tolerance))) {                           \
      check::failed(__FILE__, __LINE__, check::both(#left " near " #right, left_, right_)); \
    }                                                                                     \
  } while (0)

int main() { return check::run(); }
