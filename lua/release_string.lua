-- Releases locks of the string form that still hold the given owners, and tells
-- waiters.
-- KEYS[i] a lock. ARGV[2i-1] its owner, ARGV[2i] the channel of its releases. One
-- more after them all says where to publish: 'sharded', 'both', 'classic' on a
-- cluster; without it the channels are classic, on one server. They are classic too
-- where no others are known.
-- Answers for each lock two numbers: 1 when it was the owner's and is free now,
-- else 0; then how many were told, on both if so asked, -1 when none could be.
local mode = ARGV[2 * #KEYS + 1]
local function tell(channel)
  local classic, sharded, err = -1, -1, nil
  if mode == 'sharded' or mode == 'both' then
    sharded = redis.pcall('SPUBLISH', channel, '0')
    if type(sharded) == 'table' then
      err = sharded.err
      sharded = -1
    end
  end
  if mode ~= 'sharded' or err and string.find(err, '[Uu]nknown') then
    classic = redis.pcall('PUBLISH', channel, '0')
    if type(classic) == 'table' then
      classic = -1
    end
  end
  if classic < 0 or sharded < 0 then
    return math.max(classic, sharded)
  end
  return classic + sharded
end
local answers = {}
for i, key in ipairs(KEYS) do
  local holder = redis.pcall('GET', key)
  local freed, told = 0, 0
  if holder == ARGV[2 * i - 1] then
    redis.call('DEL', key)
    freed = 1
    told = tell(ARGV[2 * i])
  elseif type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
    return holder
  end
  answers[2 * i - 1] = freed
  answers[2 * i] = told
end
return answers
