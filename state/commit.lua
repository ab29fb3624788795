-- Write changed fields of a snapshot if it still stands at the watermark that the writer read.
-- KEYS: state, clients. ARGV: expected watermark, new watermark, number of values for the state,
-- then field, value, ... of the state, then of the clients.
-- Returns 1 when written, 0 when this very commit had been written before (a retry).
local held = redis.call('HGET', KEYS[1], 'next_offset') or '0'
if held == ARGV[2] and held ~= ARGV[1] then
  return 0
end
if held ~= ARGV[1] then
  return redis.error_reply('STALE expected ' .. ARGV[1] .. ' found ' .. held)
end
local ends = 3 + tonumber(ARGV[3])
for i = 4, ends, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
for i = ends + 1, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('HSET', KEYS[1], 'next_offset', ARGV[2])
return 1
