-- Wireshark's dissector of CLAN's wire (docs/wire.md): Wireshark or tshark -X lua_script:clan.lua.
--
-- Packets are known by their first four bytes, whatever the port. What mode 2 encrypts stays bytes.
local clan = Proto("clan", "CLAN")

local TYPES = { [1] = "HELLO", [2] = "RETRY", [3] = "ACCEPT", [4] = "REFUSE", [5] = "DATA", [6] = "RESET" }
local MODES = { [0] = "off", [1] = "integrity", [2] = "encrypt" }
local FRAMES = { [0] = "PADDING", [1] = "PING", [2] = "ACK", [3] = "CREDIT", [4] = "DATA", [5] = "FRAGMENT",
                 [6] = "CLOSE", [7] = "CHALLENGE", [8] = "RESPONSE" }
local MESSAGES = { [1] = "PUT", [2] = "WRITE", [3] = "WRITE DONE", [4] = "REFUSED", [5] = "READ",
                   [6] = "READ DATA", [7] = "IMPORT", [8] = "IMPORT DONE", [9] = "OUT-OF-BAND" }
local COMMON, DATA_HEADER, TAG = 8, 24, 16

local f = {
  version = ProtoField.uint8("clan.version", "Version", base.DEC, nil, 0xf0),
  type = ProtoField.uint8("clan.type", "Type", base.DEC, TYPES, 0x0f),
  mode = ProtoField.uint8("clan.mode", "Mode", base.DEC, MODES),
  check = ProtoField.uint32("clan.check", "CRC32C", base.HEX),
  id = ProtoField.uint64("clan.id", "Receiver's connection id", base.HEX),
  wanted = ProtoField.uint64("clan.wanted_id", "Connection id for the peer to use", base.HEX),
  number = ProtoField.uint64("clan.number", "Packet number"),
  random = ProtoField.bytes("clan.random", "Random"),
  cookie = ProtoField.bytes("clan.cookie", "Cookie"),
  parameters = ProtoField.bytes("clan.parameters", "Parameters"),
  share = ProtoField.bytes("clan.share", "Key share"),
  greeting = ProtoField.bytes("clan.greeting", "Greeting"),
  err = ProtoField.uint32("clan.errno", "errno"),
  sealed = ProtoField.bytes("clan.sealed", "Encrypted frames"),
  tag = ProtoField.bytes("clan.tag", "Tag"),
  frame = ProtoField.uint8("clan.frame", "Frame", base.DEC, FRAMES),
  channel = ProtoField.uint8("clan.channel", "Channel"),
  position = ProtoField.uint64("clan.position", "Position"),
  length = ProtoField.uint16("clan.length", "Payload length"),
  total = ProtoField.uint32("clan.total", "Message's payload"),
  offset = ProtoField.uint32("clan.offset", "Offset of this piece"),
  header = ProtoField.bytes("clan.header", "Message header"),
  message = ProtoField.uint8("clan.message", "Message", base.DEC, MESSAGES),
  payload = ProtoField.bytes("clan.payload", "Payload"),
  limit = ProtoField.uint64("clan.credit", "Credit up to position"),
  largest = ProtoField.uint64("clan.ack.largest", "Largest number acknowledged"),
  delay = ProtoField.uint16("clan.ack.delay", "Delay, us"),
  window = ProtoField.uint32("clan.ack.window", "Packet window"),
  ranges = ProtoField.uint8("clan.ack.ranges", "More ranges"),
  gap = ProtoField.uint32("clan.ack.gap", "Gap - 1"),
  run = ProtoField.uint32("clan.ack.run", "Length - 1"),
  value = ProtoField.uint64("clan.value", "Value", base.HEX),
}
clan.fields = f
local wrong = ProtoExpert.new("clan.wrong", "Not as docs/wire.md says", expert.group.MALFORMED, expert.severity.ERROR)
clan.experts = { wrong }

-- Frames: each takes what is left, adds itself to the tree and answers its length; nil: it makes no sense.
local frame = {}

frame[0] = function(b) return b:len() end
frame[1] = function() return 1 end
frame[2] = function(b, t)
  if b:len() < 20 then return nil end
  local more = b(1, 1):uint()
  local bytes = 20 + 8 * more
  if more > 31 or b:len() < bytes then return nil end
  t:add(f.ranges, b(1, 1))
  t:add(f.delay, b(2, 2))
  t:add(f.window, b(4, 4))
  t:add(f.largest, b(8, 8))
  t:add(f.run, b(16, 4))
  for at = 20, bytes - 8, 8 do
    t:add(f.gap, b(at, 4))
    t:add(f.run, b(at + 4, 4))
  end
  return bytes
end
frame[3] = function(b, t)
  if b:len() < 10 then return nil end
  t:add(f.channel, b(1, 1))
  t:add(f.limit, b(2, 8))
  return 10
end

local function message(b, t, fixed)
  if b:len() < fixed then return nil end
  local payload, header = b(2, 2):uint(), b(4, 1):uint()
  local bytes = fixed + header + payload
  if b:len() < bytes then return nil end
  t:add(f.channel, b(1, 1))
  t:add(f.length, b(2, 2))
  t:add(f.position, b(5, 8))
  if fixed == 21 then
    t:add(f.total, b(13, 4))
    t:add(f.offset, b(17, 4))
  end
  if header > 0 then
    t:add(f.header, b(fixed, header))
    t:add(f.message, b(fixed, 1))
  end
  if payload > 0 then t:add(f.payload, b(fixed + header, payload)) end
  return bytes
end
frame[4] = function(b, t) return message(b, t, 13) end
frame[5] = function(b, t) return message(b, t, 21) end
frame[6] = function(b, t)
  if b:len() < 5 then return nil end
  t:add(f.err, b(1, 4))
  return 5
end
local function value(b, t)
  if b:len() < 9 then return nil end
  t:add(f.value, b(1, 8))
  return 9
end
frame[7], frame[8] = value, value

local function frames(b, t)
  local names = {}
  local at = 0
  while at < b:len() do
    local rest = b(at):tvb()
    local kind = rest(0, 1):uint()
    local sub = t:add(f.frame, b(at, 1))
    local bytes = frame[kind] and frame[kind](rest, sub)
    if not bytes then
      sub:add_proto_expert_info(wrong)
      return names
    end
    sub:set_len(bytes)
    if kind ~= 0 then names[#names + 1] = FRAMES[kind] end
    at = at + bytes
  end
  return names
end

local packet = {}

local function shares(b, t, at)
  local share, greeting = b(at, 1):uint(), b(at + 2, 2):uint()
  at = at + 4
  if at + share + greeting > b:len() then return t:add_proto_expert_info(wrong) end
  if share > 0 then t:add(f.share, b(at, share)) end
  if greeting > 0 then t:add(f.greeting, b(at + share, greeting)) end
end
packet[1] = function(b, t)
  t:add(f.wanted, b(8, 8))
  t:add(f.random, b(16, 16))
  t:add(f.cookie, b(32, 16))
  t:add(f.parameters, b(48, 40))
  shares(b, t, 88)
end
packet[2] = function(b, t)
  t:add(f.id, b(8, 8))
  t:add(f.cookie, b(16, 16))
end
packet[3] = function(b, t)
  t:add(f.id, b(8, 8))
  t:add(f.wanted, b(16, 8))
  t:add(f.random, b(24, 16))
  t:add(f.parameters, b(40, 40))
  shares(b, t, 80)
end
packet[4] = function(b, t)
  t:add(f.id, b(8, 8))
  t:add(f.err, b(16, 4))
end
packet[5] = function(b, t, mode)
  t:add(f.id, b(8, 8))
  t:add(f.number, b(16, 8))
  local tag = mode == 0 and 0 or TAG
  local bytes = b:len() - DATA_HEADER - tag
  if bytes < 0 then return t:add_proto_expert_info(wrong) end
  if tag > 0 then t:add(f.tag, b(b:len() - tag, tag)) end
  if bytes == 0 then return end
  if mode == 2 then
    t:add(f.sealed, b(DATA_HEADER, bytes))
    return { "sealed" }
  end
  return frames(b(DATA_HEADER, bytes):tvb(), t)
end
packet[6] = function(b, t)
  t:add(f.id, b(8, 8))
  t:add(f.number, b(16, 8))
end
local LEAST = { [1] = 1200, [2] = 32, [3] = 84, [4] = 24, [5] = 24, [6] = 24 }

-- The first four bytes and a length that the type can have.
local function is_clan(b)
  if b:len() < COMMON or b:captured_len() < b:reported_len() then return false end
  local version, kind, mode = b(0, 1):bitfield(0, 4), b(0, 1):bitfield(4, 4), b(1, 1):uint()
  local least = LEAST[kind]
  return version == 1 and least ~= nil and b:len() >= least and mode <= 2 and b(2, 2):uint() == 0
end

function clan.dissector(b, pinfo, tree)
  if not is_clan(b) then return 0 end
  local kind, mode = b(0, 1):bitfield(4, 4), b(1, 1):uint()
  pinfo.cols.protocol = "CLAN"
  local t = tree:add(clan, b())
  t:add(f.version, b(0, 1))
  t:add(f.type, b(0, 1))
  t:add(f.mode, b(1, 1))
  t:add(f.check, b(4, 4))
  local names = packet[kind](b, t, mode)
  pinfo.cols.info = TYPES[kind] .. (names and " " .. table.concat(names, ", ") or "")
  return b:len()
end

clan:register_heuristic("udp", function(b, pinfo, tree)
  if not is_clan(b) then return false end
  clan.dissector(b, pinfo, tree)
  return true
end)
