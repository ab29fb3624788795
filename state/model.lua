-- Store a model if it is newer than the one that is held. KEYS: model. ARGV: version, payload.
-- Returns 1 when written, 0 when this version had been written before with the same payload.
local held = redis.call('HGET', KEYS[1], 'version') or '0'
if held == ARGV[1] and redis.call('HGET', KEYS[1], 'payload') == ARGV[2] then
  return 0
end
if tonumber(held) >= tonumber(ARGV[1]) then
  return redis.error_reply('STALE model ' .. ARGV[1] .. ' is not newer than ' .. held)
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'payload', ARGV[2])
return 1
