-- Tells which command a user may not run of those that acquiring, renewing and releasing a
-- lock need: so whoever may lock and not release learns it before anything is taken.
-- KEYS are those of acquire. ARGV[1] the form: 'hash', 'fenced' or 'string', ARGV[2] an owner.
-- Answers an error that names the first command that is denied, else nothing. It asks, and
-- runs none of them: a script that has written goes on when memory is full, and acquire
-- must not. Servers before Redis 7.0 cannot be asked.
if not redis.acl_check_cmd then
  return nil
end
local form, owner, key = ARGV[1], ARGV[2], KEYS[1]
local needed = {{'PTTL', key}, {'PEXPIRE', key, '1'}}
if form == 'string' then
  table.insert(needed, {'GET', key})
  table.insert(needed, {'SET', key, owner, 'PX', '1'})
  table.insert(needed, {'DEL', key})
else
  table.insert(needed, {'HLEN', key})
  table.insert(needed, {'HEXISTS', key, owner})
  table.insert(needed, {'HSET', key, owner, '1'})
  table.insert(needed, {'HDEL', key, owner})
end
if form == 'fenced' then
  table.insert(needed, {'TIME'})
  table.insert(needed, {'GET', KEYS[2]})
  table.insert(needed, {'SET', KEYS[2], '1'})
end
for _, command in ipairs(needed) do
  local known, may = pcall(redis.acl_check_cmd, unpack(command))
  if not known or not may then
    return redis.error_reply('NOPERM the user may not run ' .. command[1] .. ', which the lock needs')
  end
end
return nil
