#!/usr/bin/env python3
"""Writes the shipped device files whose timing table is computed from nanosecond and clock parameters.

The form is Ramulator 2.1's fully resolved configuration. A command that takes c ticks on the command bus starts its
device-internal work c - 1 ticks later, so a rule between `a` and `b` is lengthened by cycles(a) - 1 and shortened by
cycles(b) - 1. Run in this directory; the other files here were measured configurations, copied.
"""
import math

def table(rows, ids, cyc):
    out = []
    for level, before, after, ticks, *rest in rows:
        groups = {}
        for a in before.split():
            for b in after.split():
                adj = ticks if rest and rest[-1] is True else ticks + cyc.get(a, 1) - cyc.get(b, 1)
                groups.setdefault((adj, a), []).append(b)
        merged = {}
        for (adj, a), bs in groups.items():
            merged.setdefault((adj, tuple(bs)), []).append(a)
        for (adj, bs), as_ in merged.items():
            out.append([level, [ids[a] for a in as_], [ids[b] for b in bs], max(adj, 0)] + list(rest))
    return out

def write(name, source, controller, standard, queue, refresh, dq, width, count, timing, latency, rows, ids, cyc):
    f = lambda x: str(x).lower() if isinstance(x, bool) else (
        "[" + ", ".join(f(y) for y in x) + "]" if isinstance(x, list) else str(x))
    with open(name + ".yaml", "w") as o:
        o.write("".join(f"# {l}\n" for l in source))
        o.write(f"""memory_system:
  impl: GenericDRAM
  channel_mapper:
    impl: CacheLineInterleave
  controllers:
    - impl: {controller}
      read_buffer_size: {queue}
      write_buffer_size: {queue}
      scheduler:
        impl: FRFCFS
      refresh_manager:
        impl: {refresh}
      row_policy:
        impl: Open
      addr_mapper:
        impl: RoBaRaCoCh
      dram:
        impl: {standard}
        org:
          dq: {dq}
          count: {f(count)}
        timing: {f(timing)}
        channel_width: {width}
        read_latency: {latency}
        timing_constraints:
""")
        for r in table(rows, ids, cyc):
            o.write(f"          - {f(r)}\n")

def common(top, group, bank, t, rd_wr):
    """Rules that all standards share, at the refresh scope, the bank group and the bank."""
    wr = t["CWL"] + t["BL"]
    return [
        [top, "RD RDA", "RD RDA", t["CCDS"]], [top, "WR WRA", "WR WRA", t.get("CCDS_WR", t["CCDS"])],
        [top, "RD RDA", "WR WRA", rd_wr], [top, "WR WRA", "RD RDA", wr + t["WTRS"]],
        [top, "RD", "PREab", t["RTP"]], [top, "WR", "PREab", wr + t["WR"]],
        [top, "ACT", "ACT", t["RRDS"]], [top, "ACT", "ACT", t["FAW"], 4],
        [top, "ACT", "PREab", t["RAS"]], [top, "PREab", "ACT", t["RP"]],
        [top, "ACT", "REFab", t["RC"]], [top, "PREpb PREab", "REFab", t["RP"]],
        [top, "RDA", "REFab", t["RP"] + t["RTP"]], [top, "WRA", "REFab", wr + t["WR"] + t["RP"]],
        [top, "REFab", "ACT PREab", t["RFC"]],
        [group, "RD RDA", "RD RDA", t["CCDL"]], [group, "WR WRA", "WR WRA", t.get("CCDL_WR", t["CCDL"])],
        [group, "WR WRA", "RD RDA", wr + t["WTRL"]], [group, "ACT", "ACT", t["RRDL"]],
        [bank, "ACT", "ACT", t["RC"]], [bank, "ACT", "RD RDA", t["RCDRD"]], [bank, "ACT", "WR WRA", t["RCDWR"]],
        [bank, "ACT", "PREpb", t["RAS"]], [bank, "PREpb", "ACT", t["RP"]],
        [bank, "RD", "PREpb", t["RTP"]], [bank, "WR", "PREpb", wr + t["WR"]],
        [bank, "RDA", "ACT", t["RTP"] + t["RP"]], [bank, "WRA", "ACT", wr + t["WR"] + t["RP"]],
    ]

def per_bank(top, bank, t, gap):
    return [
        [top, "REFpb", "REFpb", t["RREFD"]], [top, "REFpb", "ACT", t["RREFD"]], [top, "ACT", "REFpb", gap],
        [bank, "REFpb", "ACT", t["RFCpb"]], [bank, "ACT", "REFpb", t["RC"]], [bank, "PREpb", "REFpb", t["RP"]],
    ]

ids = lambda names: {n: i for i, n in enumerate(names.split())}
DDR = ids("ACT PREpb PREab RD WR RDA WRA REFab")
HBM = ids("ACT PREpb PREab RD WR RDA WRA REFab REFpb")
HBM3 = ids("ACT PREpb PREab RD WR RDA WRA REFab REFpb RFMab RFMpb")
GDDR = ids("ACT PREab PREpb RD WR RDA WRA REFab REFpb")

# ---- DDR5-4800 ------------------------------------------------------------------------------------------------------
t = dict(BL=8, CL=38, RCDRD=38, RCDWR=38, RP=38, RAS=77, RC=115, WR=72, RTP=18, CWL=36, PPD=2, CCDS=8, CCDL=12,
         CCDS_WR=8, CCDL_WR=48, RRDS=8, RRDL=12, WTRS=6, WTRL=24, FAW=math.ceil(20000 / 416), RFC=math.ceil(295000 / 416),
         REFI=math.ceil(3900000 / 416), CS=2)
two = {c: 2 for c in "ACT RD WR RDA WRA".split()}
rows = [[0, "RD RDA", "RD RDA", t["BL"]], [0, "WR WRA", "WR WRA", t["BL"]],
        [1, "RD RDA", "RD RDA WR WRA", t["BL"] + t["CS"], 1, True],
        [1, "WR WRA", "RD RDA", max(t["CWL"] + t["BL"] + t["CS"] - t["CL"], 0), 1, True],
        [1, "PREpb PREab", "PREpb PREab", t["PPD"]]] + common(1, 2, 3, t, t["CL"] + t["BL"] + 2 - t["CWL"] + 2)
# The command bus itself: a two-tick command keeps it for two ticks.
flat = [[0, c, d, two.get(d, 1)] for c in two for d in DDR]
write("DDR5_4800C", [
    "DDR5-4800, speed bin C (38-38-38), 16 Gb x8, one 32-bit sub-channel, one rank, 64-byte transactions.",
    "Source: JESD79-5 speed bins as in Ramulator 2.1's DDR5_4800C / DDR5_16Gb_x8 (figures only); tRFC1 295 ns, tREFI 3.9 us,",
    "tFAW 20 ns. Two-tick commands on the CA bus. Queues of 64: 8 bank groups of 64 transactions a row."],
    "GenericDDR", "DDR5", 64, "AllBank", 8, 32, [1, 1, 8, 4, 65536, 1024],
    [4800, 8, 38, 38, 38, 77, 115, 72, 18, 36, 2, 8, 12, 8, 48, 8, 12, 6, 24, t["FAW"], t["RFC"], t["REFI"], 2, 416],
    t["CL"] + t["BL"] + 1, rows + flat, DDR, two)

# ---- HBM2E-3200 -----------------------------------------------------------------------------------------------------
ck = 625
up = lambda ns, least=0: max(least, math.ceil(ns * 1000 / ck - 1e-9))
t = dict(BL=2, CL=up(14), RCDRD=up(14), RCDWR=up(12), RP=up(14), RAS=up(34), RC=up(34) + up(14), WR=up(16), RTP=up(5),
         CWL=up(5), CCDS=2, CCDL=4, RRDS=up(4, 4), RRDL=up(4, 4), WTRS=up(6), WTRL=up(8), FAW=up(15, 8), RFC=up(350),
         RFCpb=up(160), RREFD=up(8, 4), REFI=up(3900), REFIpb=up(3900 / 32))
act = {"ACT": 2}
rows = [[0, "ACT", a, act.get(a, 1)] for a in "ACT PREpb PREab REFab REFpb".split()]
rows += common(1, 2, 3, t, t["CL"] + t["BL"] + 2 - t["CWL"]) + per_bank(1, 3, t, t["RRDS"])
write("HBM2E_3200", [
    "HBM2E at 3.2 Gb/s per pin, 16 Gb-class channel, two pseudo-channels of 64 bits, 32-byte transactions.",
    "Source: nanosecond values of the HBM2-2000 device (JESD235D as in Ramulator 2.1), rounded up to 0.625 ns clocks;",
    "tRFC 350 ns (8 Gb per pseudo-channel), tREFI 3.9 us."],
    "HBM12", "HBM2", 64, "AllBank", 64, 64, [1, 2, 4, 4, 32768, 128],
    [3200, 2, t["CL"], t["RCDRD"], t["RCDWR"], t["RP"], t["RAS"], t["RC"], t["WR"], t["RTP"], t["CWL"], 2, 4, t["RRDS"],
     t["RRDL"], t["WTRS"], t["WTRL"], t["FAW"], t["RFC"], t["RFCpb"], t["RREFD"], t["REFI"], t["REFIpb"], ck],
    t["CL"] + t["BL"], rows, HBM, act)

# ---- HBM3-5200 ------------------------------------------------------------------------------------------------------
# Clocks of 1300 MHz, ticks of half a clock. The tick is 384 ps (384.6 rounded down), the table counts real clocks.
ck = 1000000 / 1300
two_ticks = lambda ns, least=0: 2 * max(least, math.ceil(ns * 1000 / ck - 1e-9))
t = dict(BL=4, CL=two_ticks(12.5), RCDRD=two_ticks(19.375), RCDWR=two_ticks(9.375), RP=two_ticks(16.25),
         RAS=two_ticks(28.125), RC=two_ticks(28.125) + two_ticks(16.25), WR=two_ticks(20.625), RTP=two_ticks(5.625),
         CWL=two_ticks(6.25), CCDS=4, CCDL=8, CCDR=6, RRDS=two_ticks(2.5, 4), RRDL=two_ticks(3.125, 5),
         WTRS=two_ticks(4.375), WTRL=two_ticks(6.25), RTW=two_ticks(12.5), FAW=two_ticks(15), PPD=4, RFC=two_ticks(350),
         RFCpb=two_ticks(200), RREFD=two_ticks(5, 3), REFI=two_ticks(3900), REFIpb=two_ticks(3900 / 32))
half = {"ACT": 3, "RD": 2, "WR": 2, "RDA": 2, "WRA": 2}
row_cmds = "ACT PREpb PREab REFab REFpb RFMab RFMpb".split()
rows = [[0, "ACT", a, half.get(a, 1)] for a in row_cmds] + [[0, "RD WR RDA WRA", "RD WR RDA WRA", 2]]
c = common(1, 3, 4, t, t["RTW"])
rows += c + [[1, "PREpb PREab", "PREpb PREab", t["PPD"]]] + per_bank(1, 4, t, t["RRDS"])
rows += [[2, "RD RDA", "RD RDA", t["CCDS"]], [2, "WR WRA", "WR WRA", t["CCDS"]],
         [2, "RD RDA", "RD RDA", t["CCDR"], 1, True]]
write("HBM3_5200", [
    "HBM3 at 5.2 Gb/s per pin, 16 Gb 8-high, two pseudo-channels of 32 bits, 32-byte transactions, half-clock ticks.",
    "Source: nanosecond values of the HBM3-6400 device (JESD238 as in Ramulator 2.1), rounded up to 1.3 GHz clocks."],
    "HBM34", "HBM3", 64, "AllBank", 32, 32, [1, 2, 2, 4, 4, 16384, 256],
    [5200, 4, t["CL"], t["RCDRD"], t["RCDWR"], t["RP"], t["RAS"], t["RC"], t["WR"], t["RTP"], t["CWL"], 4, 8, 6, t["RRDS"],
     t["RRDL"], t["WTRS"], t["WTRL"], t["RTW"], t["FAW"], 4, t["RFC"], t["RFCpb"], t["RFC"], t["RFCpb"], t["RREFD"],
     t["REFI"], t["REFIpb"], 384], t["CL"] + t["BL"], rows, HBM3, half)

# ---- GDDR6-14000 ----------------------------------------------------------------------------------------------------
t = dict(BL=4, CL=24, RCDRD=26, RCDWR=16, RP=26, RAS=53, RC=79, WR=26, RTP=4, CWL=6, CCDS=4, CCDL=6, RRDS=7, RRDL=7,
         WTRS=9, WTRL=11, FAW=28, RFC=210, RFCpb=105, RREFD=14, REFI=3333, RFCab=315)
rows = common(0, 1, 2, t, t["CL"] + 1) + per_bank(0, 2, t, t["RRDL"]) + [[0, "REFab", "ACT REFab", t["RFCab"]]]
write("GDDR6_14000", [
    "GDDR6, 8 Gb x16, two 16-bit channels in lock-step (32 bits), 64-byte transactions, 14 Gb/s class.",
    "Source: Ramulator 2.1's GDDR6_2000_1350mV_double / GDDR6_8Gb_x16 (figures only; JESD250 and a vendor data sheet)."],
    "GenericDDR", "GDDR6", 32, "AllBank", 16, 32, [1, 4, 4, 16384, 1024],
    [2000, 4, 24, 26, 16, 26, 53, 79, 26, 4, 6, 4, 6, 7, 7, 9, 11, 28, 210, 105, 14, 3333, 570, 315],
    t["CL"] + t["BL"], rows, GDDR, {})
