-- Tells whether anybody but one client has subscribed to a channel, as far as this server
-- knows; true also when it must not say. ARGV[1] the channel, ARGV[2] where it is:
-- 'sharded', or '' for the one server, ARGV[3] how many of its subscriptions are the
-- client's own. There may be fewer than those: then the client is about to lose one.
local heard = redis.pcall('PUBSUB', ARGV[2] == 'sharded' and 'SHARDNUMSUB' or 'NUMSUB', ARGV[1])
return heard.err ~= nil or tonumber(heard[2]) > tonumber(ARGV[3])
