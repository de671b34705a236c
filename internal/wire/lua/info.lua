-- Tells who holds a lock.
-- KEYS[1] the lock, KEYS[2], if given, its token counter. Answers {fields, PTTL,
-- owner, holds, token}; fields is 0 when the lock is free, owner is empty when
-- there is more than one field, token is empty when there is none.
local fields = redis.call('HLEN', KEYS[1])
local owner, holds, token = '', '0', ''
if fields == 1 then
  local all = redis.call('HGETALL', KEYS[1])
  owner, holds = all[1], all[2]
end
if KEYS[2] then
  local last = redis.pcall('GET', KEYS[2])
  if type(last) == 'string' then
    token = last
  end
end
return {fields, redis.call('PTTL', KEYS[1]), owner, holds, token}
