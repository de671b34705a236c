-- Hands a lock that one owner of a client still holds to another of the same client,
-- unless somebody else waits for it: then it is released.
-- acquire, release and others are the scripts of those names. KEYS are those of acquire.
-- ARGV[1] the owner that leaves, ARGV[2] the channel of its releases, ARGV[3] where to
-- publish: 'sharded', or '' for the one server, ARGV[4] how many of the channel's
-- subscriptions are the client's own, ARGV[5..] are those of acquire.
-- Answers what release does, and behind it what acquire does if it ran. Nothing is
-- published then: nobody would hear it.
-- From the HDEL on nothing may fail: an error would leave the caller in doubt of the
-- release. And no list is unpacked that a caller may make long: Lua has little room.
local place, acquiring = KEYS[1], {}
for i = 5, #ARGV do
  acquiring[i - 4] = ARGV[i]
end
if others({}, {ARGV[2], ARGV[3], ARGV[4]}) or redis.pcall('HEXISTS', place, ARGV[1]) ~= 1 then
  return release({place}, {ARGV[1], ARGV[2], ARGV[3] ~= '' and ARGV[3] or nil})
end
redis.call('HDEL', place, ARGV[1])
local answers = {1, 0}
local ran, answer = pcall(acquire, KEYS, acquiring)
if ran and not answer.err then
  for i = 1, #answer do
    answers[i + 2] = answer[i]
  end
end
return answers
