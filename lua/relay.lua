-- Hands a lock that one owner of a client still holds to another of the same client,
-- unless somebody else waits for it: then it is released.
-- acquire, release and others are the scripts of those names. KEYS are those of acquire.
-- ARGV[1] the owner that leaves, ARGV[2] the channel of its releases, ARGV[3] where to
-- publish: 'sharded', or '' for the one server, ARGV[4] how many of the channel's
-- subscriptions are the client's own, ARGV[5..] are those of acquire.
-- Answers what release does, and behind it what acquire does if it ran. Nothing is
-- published then: nobody would hear it.
local place = KEYS[1]
if others({}, {ARGV[2], ARGV[3], ARGV[4]}) or redis.pcall('HEXISTS', place, ARGV[1]) ~= 1 then
  return release({place}, {ARGV[1], ARGV[2], ARGV[3] ~= '' and ARGV[3] or nil})
end
redis.call('HDEL', place, ARGV[1])
local ran, answer = pcall(acquire, KEYS, {unpack(ARGV, 5)})
if not ran or answer.err then
  return {1, 0} -- no error: it would leave the caller in doubt of the release
end
return {1, 0, unpack(answer)}
