-- Takes a free lock for a new owner, with a token larger than every one before.
-- KEYS[1] the lock, KEYS[2] the token's counter. ARGV[1] the lease in ms, ARGV[2]
-- the owner, ARGV[3] the counter's TTL in ms or 0 for none, ARGV[4] how many more
-- tokens to reserve, ARGV[5..] owners of earlier attempts whose outcome the caller
-- does not know: what one of them took is taken over.
-- Answers {1, token, last} when taken, {0, PTTL} when somebody else holds it. The
-- token is the server's time in µs, or one more than the last if that is not less.
-- Those up to last are reserved with it. They are taken from the time since the
-- last, and so never run ahead of the clock: what is granted when the counter was
-- lost is larger than all of them. Without a counter that time is not known, and
-- nothing is reserved. Lua's numbers are exact below 2^53, and are written with
-- %.0f, since tostring gives up digits.
local lease, idle, more = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not lease or lease < 1 or lease > 9007199254740991 or lease % 1 ~= 0 then
  return redis.error_reply('ERR lease out of range')
end
if not idle or idle < 0 or idle > 9007199254740991 or idle % 1 ~= 0 then
  return redis.error_reply('ERR token TTL out of range')
end
if not more or more < 0 or more > 9007199254740991 or more % 1 ~= 0 then
  return redis.error_reply('ERR reserve out of range')
end
for i = 5, #ARGV do
  redis.call('HDEL', KEYS[1], ARGV[i])
end
if redis.call('HLEN', KEYS[1]) > 0 then
  return {0, redis.call('PTTL', KEYS[1])}
end
local last = redis.pcall('GET', KEYS[2])
if type(last) == 'table' then
  if string.find(last.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply('TOKENRANGE the counter is not a string')
  end
  return last
end
local now = redis.call('TIME')
local micros = now[1] * 1000000 + now[2]
local token, top = micros, micros
if last then
  local n = #last <= 17 and string.find(last, '^%-?%d+$') and tonumber(last)
  if not n or n >= 9007199254740991 then
    return redis.error_reply('TOKENRANGE the counter is not an integer below 2^53 - 1')
  end
  token = math.max(n + 1, micros - more)
  top = math.max(token, micros)
end
if idle > 0 then
  redis.call('SET', KEYS[2], string.format('%.0f', top), 'PX', string.format('%.0f', idle))
else
  redis.call('SET', KEYS[2], string.format('%.0f', top))
end
redis.call('HSET', KEYS[1], ARGV[2], '1')
local set = redis.pcall('PEXPIRE', KEYS[1], string.format('%.0f', lease))
if type(set) == 'table' then
  redis.call('HDEL', KEYS[1], ARGV[2]) -- or it would be held without an end
  return set
end
return {1, token, top}
