-- Tells whether a lock is still held by the given owner, and whether others wait for it.
-- others is the script of that name. KEYS[1] the lock. ARGV[1] its owner, ARGV[2] the
-- channel of its releases, ARGV[3] where they are published: 'sharded', or '' for the one
-- server, ARGV[4] how many of the channel's subscriptions are the client's own.
-- Answers two numbers: 1 when the lock is the owner's, 0 when it is not, -1 when it could
-- not be looked at; then 1 when anybody but the client has subscribed, else 0.
local mine = redis.pcall('HEXISTS', KEYS[1], ARGV[1])
if type(mine) == 'table' then
  mine = string.find(mine.err, 'WRONGTYPE', 1, true) and 0 or -1
end
return {mine, others({}, {ARGV[2], ARGV[3], ARGV[4]}) and 1 or 0}
