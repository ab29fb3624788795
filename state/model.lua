-- Store a model if it is newer than the one that is held. KEYS: model. ARGV: version, payload.
-- Returns 1 when written, 0 when this version had been written before with the same payload.
local held = redis.call('HGET', KEYS[1], 'version') or '0'
if held == ARGV[1] and redis.call('HGET', KEYS[1], 'payload') == ARGV[2] then
  return 0
end
-- as text: numbers of Lua are doubles, to which 2^53 and 2^53 + 1 are the same
local longer = #ARGV[1] - #held
if longer < 0 or (longer == 0 and ARGV[1] <= held) then
  return redis.error_reply('STALE model ' .. ARGV[1] .. ' is not newer than ' .. held)
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'payload', ARGV[2])
return 1
