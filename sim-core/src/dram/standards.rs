//! What a DRAM standard fixes: its hierarchy, its commands and the order in which device files list them.
//!
//! The device files give numbers by position. The tables here say what each position means; they follow the order in
//! which Ramulator 2.1 writes its fully resolved configuration files (CMU-SAFARI/ramulator2 at c5b1c3a), and the
//! shorter forms that PyTorchSim's files use.

use serde::{Deserialize, Serialize};

/// A DRAM command, the same set for all standards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Cmd {
    /// Activate; the first half of a split activate (ACT1) on LPDDR5.
    Act,
    /// The second half of a split activate (LPDDR5 only).
    Act2,
    /// Precharge one bank.
    Pre,
    /// Precharge all banks of a scope.
    PreAll,
    /// Clock synchronisation ahead of a read (LPDDR5 only).
    CasRd,
    /// Clock synchronisation ahead of a write (LPDDR5 only).
    CasWr,
    /// Read.
    Rd,
    /// Write.
    Wr,
    /// Read with auto-precharge.
    RdA,
    /// Write with auto-precharge.
    WrA,
    /// Refresh all banks of a scope.
    RefAll,
    /// Refresh one bank.
    RefBank,
    /// Refresh management, all banks (never issued; kept so that tables load).
    RfmAll,
    /// Refresh management, one bank (never issued; kept so that tables load).
    RfmBank,
}

/// How many commands there are.
pub(crate) const CMDS: usize = 14;

impl Cmd {
    /// The command's name in a device file of `standard`.
    pub fn name(self, standard: Standard) -> &'static str {
        match self {
            Cmd::Act if standard == Standard::Lpddr5 => "ACT1",
            Cmd::Act => "ACT",
            Cmd::Act2 => "ACT2",
            Cmd::Pre => "PREpb",
            Cmd::PreAll => "PREab",
            Cmd::CasRd => "CAS_RD",
            Cmd::CasWr => "CAS_WR",
            Cmd::Rd => "RD",
            Cmd::Wr => "WR",
            Cmd::RdA => "RDA",
            Cmd::WrA => "WRA",
            Cmd::RefAll => "REFab",
            Cmd::RefBank => "REFpb",
            Cmd::RfmAll => "RFMab",
            Cmd::RfmBank => "RFMpb",
        }
    }
}

/// A family of devices that share commands and hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Standard {
    /// DDR4 SDRAM (JESD79-4).
    Ddr4,
    /// DDR5 SDRAM (JESD79-5).
    Ddr5,
    /// LPDDR5 and LPDDR5X (JESD209-5).
    Lpddr5,
    /// HBM, first generation (JESD235).
    Hbm1,
    /// HBM2 and HBM2E (JESD235C/D).
    Hbm2,
    /// HBM3 and HBM3E (JESD238).
    Hbm3,
    /// GDDR6 (JESD250).
    Gddr6,
}

const DDR: &[Cmd] = &[
    Cmd::Act,
    Cmd::Pre,
    Cmd::PreAll,
    Cmd::Rd,
    Cmd::Wr,
    Cmd::RdA,
    Cmd::WrA,
    Cmd::RefAll,
];
const LPDDR: &[Cmd] = &[
    Cmd::Act,
    Cmd::Act2,
    Cmd::Pre,
    Cmd::PreAll,
    Cmd::CasRd,
    Cmd::CasWr,
    Cmd::Rd,
    Cmd::Wr,
    Cmd::RdA,
    Cmd::WrA,
    Cmd::RefAll,
    Cmd::RefBank,
];
const HBM: &[Cmd] = &[
    Cmd::Act,
    Cmd::Pre,
    Cmd::PreAll,
    Cmd::Rd,
    Cmd::Wr,
    Cmd::RdA,
    Cmd::WrA,
    Cmd::RefAll,
    Cmd::RefBank,
];
const HBM3: &[Cmd] = &[
    Cmd::Act,
    Cmd::Pre,
    Cmd::PreAll,
    Cmd::Rd,
    Cmd::Wr,
    Cmd::RdA,
    Cmd::WrA,
    Cmd::RefAll,
    Cmd::RefBank,
    Cmd::RfmAll,
    Cmd::RfmBank,
];
const GDDR: &[Cmd] = &[
    Cmd::Act,
    Cmd::PreAll,
    Cmd::Pre,
    Cmd::Rd,
    Cmd::Wr,
    Cmd::RdA,
    Cmd::WrA,
    Cmd::RefAll,
    Cmd::RefBank,
];

impl Standard {
    /// The standard a device file's `dram.impl` names.
    pub fn from_name(name: &str) -> Option<Standard> {
        Some(match name {
            "DDR4" => Standard::Ddr4,
            "DDR5" => Standard::Ddr5,
            "LPDDR5" => Standard::Lpddr5,
            "HBM1" | "HBM" => Standard::Hbm1,
            "HBM2" => Standard::Hbm2,
            "HBM3" => Standard::Hbm3,
            "GDDR6" => Standard::Gddr6,
            _ => return None,
        })
    }

    /// The name a device file uses.
    pub fn name(self) -> &'static str {
        match self {
            Standard::Ddr4 => "DDR4",
            Standard::Ddr5 => "DDR5",
            Standard::Lpddr5 => "LPDDR5",
            Standard::Hbm1 => "HBM1",
            Standard::Hbm2 => "HBM2",
            Standard::Hbm3 => "HBM3",
            Standard::Gddr6 => "GDDR6",
        }
    }

    /// Commands in the order in which a device file numbers them.
    pub fn commands(self) -> &'static [Cmd] {
        match self {
            Standard::Ddr4 | Standard::Ddr5 => DDR,
            Standard::Lpddr5 => LPDDR,
            Standard::Hbm1 | Standard::Hbm2 => HBM,
            Standard::Hbm3 => HBM3,
            Standard::Gddr6 => GDDR,
        }
    }

    /// Levels of the hierarchy from the channel to the column, for an `org.count` of `n` entries.
    pub fn levels(self, n: usize) -> Option<&'static [&'static str]> {
        let levels: &'static [&'static str] = match self {
            Standard::Ddr4 | Standard::Ddr5 | Standard::Lpddr5 => {
                &["Channel", "Rank", "BankGroup", "Bank", "Row", "Column"]
            }
            Standard::Hbm3 if n == 7 => &[
                "Channel",
                "PseudoChannel",
                "Sid",
                "BankGroup",
                "Bank",
                "Row",
                "Column",
            ],
            Standard::Hbm2 | Standard::Hbm3 => &[
                "Channel",
                "PseudoChannel",
                "BankGroup",
                "Bank",
                "Row",
                "Column",
            ],
            Standard::Hbm1 | Standard::Gddr6 => &["Channel", "BankGroup", "Bank", "Row", "Column"],
        };
        (levels.len() == n).then_some(levels)
    }

    /// The level whose nodes are refreshed together, unless the file says otherwise.
    pub fn refresh_scope(self) -> &'static str {
        match self {
            Standard::Ddr4 | Standard::Ddr5 | Standard::Lpddr5 => "Rank",
            Standard::Gddr6 | Standard::Hbm1 => "Channel",
            Standard::Hbm2 | Standard::Hbm3 => "PseudoChannel",
        }
    }

    /// Data beats in one transaction.
    pub fn prefetch(self) -> u32 {
        match self {
            Standard::Ddr4 | Standard::Hbm3 => 8,
            Standard::Ddr5 | Standard::Lpddr5 | Standard::Gddr6 => 16,
            Standard::Hbm1 => 2,
            Standard::Hbm2 => 4,
        }
    }

    /// Names of the `timing` array's entries, for an array of `n` entries.
    pub fn timings(self, n: usize) -> Option<&'static [&'static str]> {
        let names: &'static [&'static str] = match (self, n) {
            (Standard::Ddr4, _) => &[
                "rate", "nBL", "nCL", "nRCD", "nRP", "nRAS", "nRC", "nWR", "nRTP", "nCWL", "nCCDS",
                "nCCDL", "nRRDS", "nRRDL", "nWTRS", "nWTRL", "nFAW", "nRFC", "nREFI", "nCS",
                "tCK_ps",
            ],
            (Standard::Ddr5, _) => &[
                "rate", "nBL", "nCL", "nRCD", "nRP", "nRAS", "nRC", "nWR", "nRTP", "nCWL", "nPPD",
                "nCCDS", "nCCDL", "nCCDS_WR", "nCCDL_WR", "nRRDS", "nRRDL", "nWTRS", "nWTRL",
                "nFAW", "nRFC", "nREFI", "nCS", "tCK_ps",
            ],
            (Standard::Lpddr5, 30) => &[
                "rate", "nBL_min", "nCL", "nRCD", "nRP", "nRPab", "nRAS", "nRC", "nWR", "nRTP",
                "nCWL", "nPPD", "nCCDS", "nCCDL", "nCCDS_WR", "nCCDL_WR", "nRRDS", "nRRDL",
                "nWTRS", "nWTRL", "nFAW", "nRFC", "nRFCpb", "nREFI", "nREFIpb", "nWCKPST", "nCAS",
                "nAAD", "nCS", "tCK_ps",
            ],
            (Standard::Lpddr5, _) => &[
                "rate", "nBL_min", "nBL_max", "nCL", "nRCD", "nRP", "nRPab", "nRAS", "nRC", "nWR",
                "nRTP", "nCWL", "nPPD", "nCCDS", "nCCDL", "nCCDS_WR", "nCCDL_WR", "nRRDS", "nRRDL",
                "nWTRS", "nWTRL", "nFAW", "nRFC", "nRFCpb", "nREFI", "nREFIpb", "nWCKPST", "nCAS",
                "nAAD", "nCS", "tCK_ps", "nPBR2PBR", "nPBR2ACT",
            ],
            (Standard::Hbm1 | Standard::Hbm2, _) => &[
                "rate", "nBL", "nCL", "nRCDRD", "nRCDWR", "nRP", "nRAS", "nRC", "nWR", "nRTPL",
                "nCWL", "nCCDS", "nCCDL", "nRRDS", "nRRDL", "nWTRS", "nWTRL", "nFAW", "nRFC",
                "nRFCpb", "nRREFD", "nREFI", "nREFIpb", "tCK_ps",
            ],
            (Standard::Hbm3, 28) => &[
                "rate", "nBL", "nCL", "nRCDRD", "nRCDWR", "nRP", "nRAS", "nRC", "nWR", "nRTP",
                "nCWL", "nCCDS", "nCCDL", "nRRDS", "nRRDL", "nWTRS", "nWTRL", "nFAW", "nPPD",
                "nBTR", "nRFC", "nRFCpb", "nRFMab", "nRFMpb", "nRREFD", "nREFI", "nREFIpb",
                "tCK_ps",
            ],
            (Standard::Hbm3, _) => &[
                "rate", "nBL", "nCL", "nRCDRD", "nRCDWR", "nRP", "nRAS", "nRC", "nWR", "nRTP",
                "nCWL", "nCCDS", "nCCDL", "nCCDR", "nRRDS", "nRRDL", "nWTRS", "nWTRL", "nRTW",
                "nFAW", "nPPD", "nRFC", "nRFCpb", "nRFMab", "nRFMpb", "nRREFD", "nREFI", "nREFIpb",
                "tCK_ps",
            ],
            (Standard::Gddr6, _) => &[
                "rate", "nBL", "nCL", "nRCDRD", "nRCDWD", "nRP", "nRAS", "nRC", "nWR", "nRTP",
                "nCWL", "nCCDS", "nCCDL", "nRRDS", "nRRDL", "nWTRS", "nWTRL", "nFAW", "nRFC",
                "nRFCpb", "nRREFD", "nREFI", "tCK_ps", "nRFCab",
            ],
        };
        (names.len() == n).then_some(names)
    }
}
