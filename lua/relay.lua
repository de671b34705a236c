-- Hands a lock that one owner of a client still holds to another of the same
-- client, unless somebody else waits for it: then it is released.
-- acquire and release are the scripts of those names. KEYS are those of acquire.
-- ARGV[1] the owner that leaves, ARGV[2] the channel of its releases, ARGV[3]
-- where to publish: 'sharded', or '' for the one server, ARGV[4] how many of the
-- channel's subscriptions are the client's own, ARGV[5..] are those of acquire.
-- Answers what release does, and behind it what acquire does if it ran. Nothing is
-- published then: nobody would hear it.
local place = KEYS[1]
local heard = redis.pcall('PUBSUB', ARGV[3] == 'sharded' and 'SHARDNUMSUB' or 'NUMSUB', ARGV[2])
local alone = not heard.err and tonumber(heard[2]) <= tonumber(ARGV[4])
if not alone or redis.pcall('HEXISTS', place, ARGV[1]) ~= 1 then
  return release({place}, {ARGV[1], ARGV[2], ARGV[3] ~= '' and ARGV[3] or nil})
end
redis.call('HDEL', place, ARGV[1])
local ran, answer = pcall(acquire, KEYS, {unpack(ARGV, 5)})
if not ran or answer.err then
  return {1, 0} -- it is free, and whoever tries next will hear why
end
return {1, 0, unpack(answer)}
