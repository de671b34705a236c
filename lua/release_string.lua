-- Releases locks of the string form that still hold the given owners, and tells
-- waiters.
-- KEYS[i] a lock. ARGV[2i-1] its owner, ARGV[2i] the channel of its releases.
-- Answers for each lock two numbers: 1 when it was the owner's and is free now,
-- else 0; then how many were told, -1 when the user may not publish.
local answers = {}
for i, key in ipairs(KEYS) do
  local holder = redis.pcall('GET', key)
  local freed, told = 0, 0
  if holder == ARGV[2 * i - 1] then
    redis.call('DEL', key)
    freed = 1
    told = redis.pcall('PUBLISH', ARGV[2 * i], '0')
    if type(told) == 'table' then
      told = -1
    end
  elseif type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
    return holder
  end
  answers[2 * i - 1] = freed
  answers[2 * i] = told
end
return answers
