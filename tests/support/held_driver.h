// HeldDriver: a context's driver thread that does nothing, for as long as it lives: what goes on
// meanwhile needs no driver thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <future>
#include <memory>

#include "base/fd.h"
#include "base/reactor.h"

namespace clan::test {

class HeldDriver {
 public:
  explicit HeldDriver(Reactor& reactor)
      : reactor_(reactor), hold_(std::make_shared<Hold>()), fd_(::eventfd(1, EFD_CLOEXEC)) {
    EXPECT_TRUE(reactor_.add(fd_.get(), hold_).ok());
    hold_->held.get_future().wait();
  }
  ~HeldDriver() {
    reactor_.remove(fd_.get());
    hold_->let_go.set_value();
  }
  HeldDriver(const HeldDriver&) = delete;
  HeldDriver& operator=(const HeldDriver&) = delete;

 private:
  struct Hold final : Pollable {
    void on_ready(std::uint32_t) override {
      held.set_value();
      let_go.get_future().wait();
    }
    std::promise<void> held, let_go;
  };
  Reactor& reactor_;
  std::shared_ptr<Hold> hold_;
  Fd fd_;
};

}  // namespace clan::test
