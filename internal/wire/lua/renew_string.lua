-- Renews locks of the string form that still hold the given owners. Never lowers
-- a TTL.
-- KEYS[i] a lock. ARGV[2i-1] its owner, ARGV[2i] the lease in ms, 0 only to look.
-- Answers for each lock 1 when it is the owner's, 0 when it is not, -1 when it
-- could not be looked at. One bad key costs the others nothing.
local answers = {}
for i, key in ipairs(KEYS) do
  local holder = redis.pcall('GET', key)
  if holder == ARGV[2 * i - 1] then
    local lease = tonumber(ARGV[2 * i])
    if lease > 0 and lease > redis.call('PTTL', key) then
      redis.call('PEXPIRE', key, ARGV[2 * i])
    end
    answers[i] = 1
  elseif type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
    answers[i] = -1
  else
    answers[i] = 0
  end
end
return answers
