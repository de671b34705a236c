-- Takes a free lock for a new owner.
-- KEYS[1] the lock. ARGV[1] the lease in ms, ARGV[2] the owner, ARGV[3..] owners
-- of earlier attempts whose outcome the caller does not know: what one of them
-- took is taken over.
-- Answers {1} when taken, {0, PTTL} when somebody else holds it.
local lease = tonumber(ARGV[1])
if not lease or lease < 1 or lease > 9007199254740991 or lease % 1 ~= 0 then
  return redis.error_reply('ERR lease out of range')
end
for i = 3, #ARGV do
  redis.call('HDEL', KEYS[1], ARGV[i])
end
if redis.call('HLEN', KEYS[1]) > 0 then
  return {0, redis.call('PTTL', KEYS[1])}
end
redis.call('HSET', KEYS[1], ARGV[2], '1')
local set = redis.pcall('PEXPIRE', KEYS[1], string.format('%.0f', lease))
if type(set) == 'table' then
  redis.call('HDEL', KEYS[1], ARGV[2]) -- or it would be held without an end
  return set
end
return {1}
