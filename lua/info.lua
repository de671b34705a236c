-- Tells who holds a lock.
-- KEYS[1] the lock. Answers {fields, PTTL, owner, holds}; fields is 0 when the
-- lock is free, and owner is empty when there is more than one field.
local fields = redis.call('HLEN', KEYS[1])
local owner, holds = '', '0'
if fields == 1 then
  local all = redis.call('HGETALL', KEYS[1])
  owner, holds = all[1], all[2]
end
return {fields, redis.call('PTTL', KEYS[1]), owner, holds}
