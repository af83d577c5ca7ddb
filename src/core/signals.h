// SPDX-License-Identifier: Apache-2.0
//
// File: signals.h
//
// Keeps the program's signals out of the library's own threads, which inherit the
// mask that they are started with:
//
//   const core::SignalsBlocked blocked;
//   thread_ = std::thread(...);
//
// Signals that a thread raises by what it does (a fault, an abort) stay deliverable:
// where they are blocked, the system ends the process without asking its handler.
#ifndef HBMALLOC_CORE_SIGNALS_H_
#define HBMALLOC_CORE_SIGNALS_H_

#include <signal.h>

#include <initializer_list>

namespace hbm::core {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t mask;
    sigfillset(&mask);
    for (const int raised : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
      sigdelset(&mask, raised);
    }
    pthread_sigmask(SIG_BLOCK, &mask, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_SIGNALS_H_
