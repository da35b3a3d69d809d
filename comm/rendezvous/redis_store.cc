// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/redis_store.h"

#include <hiredis/hiredis.h>
#include <sys/time.h>

#include <initializer_list>
#include <mutex>
#include <vector>

#include "comm/rendezvous/sigpipe_blocked.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

struct ReplyFree {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyFree>;

struct ContextFree {
  void operator()(redisContext* context) const { redisFree(context); }
};

class RedisStore final : public LaunchStore {
 public:
  RedisStore(const std::string& host, int port, const std::string& launch_id, std::chrono::milliseconds timeout)
      : hash_("droptest/" + launch_id),
        where_("Redis at " + host + ":" + std::to_string(port) + ", launch " + launch_id) {
    timeval limit{};
    limit.tv_sec = timeout.count() / 1000;
    limit.tv_usec = timeout.count() % 1000 * 1000;
    const SigpipeBlocked blocked;
    context_.reset(redisConnectWithTimeout(host.c_str(), port, limit));
    if (context_ == nullptr || context_->err != 0) {
      throw CommError("rendezvous: cannot connect to " + where_ + ": " +
                      (context_ == nullptr ? "out of memory" : context_->errstr) + "; is the server running?");
    }
    redisSetTimeout(context_.get(), limit);
  }

  bool set_if_absent(const std::string& key, std::string_view value) override {
    const Reply set = ask({"HSETNX", hash_, key, value});
    constexpr std::string_view kOneDaySeconds = "86400";
    ask({"EXPIRE", hash_, kOneDaySeconds});
    return set->integer == 1;
  }

  std::optional<std::string> get(const std::string& key) override {
    const Reply reply = ask({"HGET", hash_, key});
    if (reply->type == REDIS_REPLY_NIL) return std::nullopt;
    return std::string(reply->str, static_cast<std::size_t>(reply->len));
  }

  void clear() override { ask({"DEL", hash_}); }

  const std::string& where() const override { return where_; }

 private:
  Reply ask(std::initializer_list<std::string_view> words) {
    std::vector<const char*> texts;
    std::vector<std::size_t> sizes;
    for (const std::string_view word : words) {
      texts.push_back(word.data());
      sizes.push_back(word.size());
    }
    const std::lock_guard lock(mutex_);
    const SigpipeBlocked blocked;
    Reply reply(static_cast<redisReply*>(
        redisCommandArgv(context_.get(), static_cast<int>(texts.size()), texts.data(), sizes.data())));
    if (reply == nullptr) throw CommError("rendezvous: " + where_ + ": " + context_->errstr);
    if (reply->type == REDIS_REPLY_ERROR) throw CommError("rendezvous: " + where_ + ": " + reply->str);
    return reply;
  }

  const std::string hash_;
  const std::string where_;
  std::mutex mutex_;
  std::unique_ptr<redisContext, ContextFree> context_;
};

}  // namespace

std::unique_ptr<LaunchStore> open_redis_store(const std::string& host, int port, const std::string& launch_id,
                                              std::chrono::milliseconds timeout) {
  if (port < 1 || port > 65535) {
    throw ConfigError("rendezvous: Redis port " + std::to_string(port) + ", want 1 to 65535");
  }
  return std::make_unique<RedisStore>(host, port, launch_id, timeout);
}

}  // namespace droptest::comm
