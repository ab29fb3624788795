-- Write changed fields of a snapshot if it still stands at the watermark that the writer read.
-- KEYS: state, clients, erased. ARGV: expected watermark, new watermark, number of values for the
-- state, number of fields of the state to remove, number of erased clients that the writer leaves
-- out; then field, value, ... of the state, the names to remove,
-- and field, value, ... of the clients.
-- Returns 1 when written, 0 when this very commit had been written before (a retry).
local held = redis.call('HGET', KEYS[1], 'next_offset') or '0'
if held == ARGV[2] and held ~= ARGV[1] then
  return 0
end
if held ~= ARGV[1] then
  return redis.error_reply('STALE expected ' .. ARGV[1] .. ' found ' .. held)
end
-- `state forget` does not move the watermark: only the list of erased clients tells of it
if redis.call('SCARD', KEYS[3]) ~= tonumber(ARGV[5]) then
  return redis.error_reply('STALE a client was taken out')
end
local values = 5 + tonumber(ARGV[3])
for i = 6, values, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
local names = values + tonumber(ARGV[4])
for i = values + 1, names do
  redis.call('HDEL', KEYS[1], ARGV[i])
end
for i = names + 1, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('HSET', KEYS[1], 'next_offset', ARGV[2])
return 1
