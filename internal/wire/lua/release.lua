-- Releases locks that are still held by the given owners, and tells waiters.
-- KEYS[i] a lock. ARGV[2i-1] its owner, ARGV[2i] the channel of its releases. One
-- more after them all says where to publish: 'sharded', 'both', 'classic' on a
-- cluster; without it the channels are classic, on one server. They are classic too
-- where no others are known.
-- Answers for each lock two numbers: 1 when it was the owner's and is free now,
-- else 0; then how many were told, on both if so asked, -1 when none could be. Those
-- of other nodes are not counted. The message is '00': Redisson, whose own is '0', reads
-- a number, and clients like this one know by the text whose release it was.
-- Removing the only field removes the key. HDEL works when memory is full, and
-- leaves alone what others may have put there.
local mode = ARGV[2 * #KEYS + 1]
local publish = (mode == 'sharded' or mode == 'both') and 'SPUBLISH' or 'PUBLISH'
local answers = {}
for i, key in ipairs(KEYS) do
  local freed = redis.pcall('HDEL', key, ARGV[2 * i - 1])
  local told = 0
  if freed == 1 then
    local channel, again = ARGV[2 * i], mode == 'both'
    told = redis.pcall(publish, channel, '00')
    if type(told) == 'table' then
      again = again or publish == 'SPUBLISH' and string.find(told.err, '[Uu]nknown')
      told = -1
    end
    if again then
      local more = redis.pcall('PUBLISH', channel, '00')
      if type(more) ~= 'table' then
        told = math.max(told, 0) + more
      end
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
