-- Releases locks that are still held by the given owners, and tells waiters.
-- KEYS[i] a lock. ARGV[2i-1] its owner, ARGV[2i] the channel of its releases.
-- Answers for each lock two numbers: 1 when it was the owner's and is free now,
-- else 0; then how many were told, -1 when the user may not publish. They are told
-- twice: '0' is a release to everybody, '2' says to clients like this one that it was
-- of one of them, and to Redisson nothing.
-- Removing the only field removes the key. HDEL works when memory is full, and
-- leaves alone what others may have put there.
local answers = {}
for i, key in ipairs(KEYS) do
  local freed = redis.pcall('HDEL', key, ARGV[2 * i - 1])
  local told = 0
  if freed == 1 then
    told = redis.pcall('PUBLISH', ARGV[2 * i], '0')
    if type(told) == 'table' then
      told = -1
    elseif told > 0 then
      redis.pcall('PUBLISH', ARGV[2 * i], '2')
    end
  elseif freed ~= 0 then
    if not string.find(freed.err, 'WRONGTYPE', 1, true) then
      return freed
    end
    freed = 0
  end
  answers[2 * i - 1] = freed
  answers[2 * i] = told
end
return answers
