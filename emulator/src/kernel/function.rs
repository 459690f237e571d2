//! NCCL's table of device functions, inverted: from the id in a batch of works to its meaning.
//!
//! The host finds a function by its row (collective, reduction, type, algorithm, protocol). The
//! library's `ncclDevFuncRowToId` gives the row's id, or -1 where there is no such function.
//! Signed and unsigned integers share functions. The order of the rows is not in the debug
//! information, so it is written down here, and a table that does not match it is refused.

use elements::reduce::Reduction;
use elements::words::Datatype;

/// What a function does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Collective {
    /// Sends and receives.
    SendRecv,
    /// `ncclAllGather`
    AllGather,
    /// `ncclBroadcast`
    Broadcast,
    /// Several broadcasts at once, with different roots (from 2.29 on).
    AllGatherV,
    /// `ncclAllReduce`
    AllReduce,
    /// `ncclReduce`
    Reduce,
    /// `ncclReduceScatter`
    ReduceScatter,
}

impl Collective {
    /// Its name in NCCL's profiler interface.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SendRecv => "SendRecv",
            Self::AllGather => "AllGather",
            Self::Broadcast => "Broadcast",
            Self::AllGatherV => "AllGatherV",
            Self::AllReduce => "AllReduce",
            Self::Reduce => "Reduce",
            Self::ReduceScatter => "ReduceScatter",
        }
    }
}

/// How ranks are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they are called")]
pub(super) enum Algorithm {
    Tree,
    Ring,
    CollnetDirect,
    CollnetChain,
    Nvls,
    NvlsTree,
    Pat,
}

impl Algorithm {
    /// Its name in NCCL's profiler interface.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tree => "TREE",
            Self::Ring => "RING",
            Self::CollnetDirect => "COLLNET_DIRECT",
            Self::CollnetChain => "COLLNET_CHAIN",
            Self::Nvls => "NVLS",
            Self::NvlsTree => "NVLS_TREE",
            Self::Pat => "PAT",
        }
    }
}

/// How data travels, and how its arrival is signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Four bytes of data, then four of a flag.
    Ll,
    /// 120 bytes of data, then eight of a flag.
    Ll128,
    /// Data in buffers, with separate counters.
    Simple,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Self::Ll, Self::Ll128, Self::Simple];

    /// Its name in NCCL's profiler interface.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ll => "LL",
            Self::Ll128 => "LL128",
            Self::Simple => "SIMPLE",
        }
    }

    /// Its number in NCCL, which is the index into arrays by protocol.
    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// The unit in which NCCL gives the size of chunks, in bytes.
    pub(super) fn grain(self) -> usize {
        match self {
            Self::Ll => 16,
            Self::Ll128 => 1920,
            Self::Simple => 512,
        }
    }
}

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Function {
    /// What it does.
    pub(super) collective: Collective,
    /// How it reduces; none where it only copies.
    pub(super) reduction: Option<Reduction>,
    /// What it reduces; bytes where it only copies.
    pub(super) datatype: Datatype,
    /// How ranks are connected.
    pub(super) algorithm: Algorithm,
    /// How data travels.
    pub(super) protocol: Protocol,
}

/// All functions of a release, by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FunctionTable {
    functions: Vec<Option<Function>>,
}

impl FunctionTable {
    /// How many entries `ncclDevFuncRowToId` has in a release, including the -1 at its end.
    pub(super) fn entries(release: u32) -> usize {
        rows(release).len() + 1
    }

    /// Reads the table of a release (23007 is 2.30.7).
    ///
    /// # Errors
    ///
    /// When it is not in the order known here.
    pub(super) fn invert(release: u32, ids: &[i32]) -> Result<FunctionTable, String> {
        let rows = rows(release);
        let (Some((&-1, ids)), true) = (ids.split_last(), ids.len() == rows.len() + 1) else {
            return Err(format!(
                "ncclDevFuncRowToId does not end after {} entries: the order of its rows in this release is not known \
                 here",
                rows.len()
            ));
        };
        let mut functions: Vec<Option<Function>> = Vec::new();
        for (function, &id) in rows.into_iter().zip(ids) {
            let Ok(id) = usize::try_from(id) else { continue };
            if id >= ids.len() {
                return Err(format!("ncclDevFuncRowToId has the id {id} where there are only {} functions", ids.len()));
            }
            if id >= functions.len() {
                functions.resize(id + 1, None);
            }
            match &mut functions[id] {
                free @ None => *free = Some(function),
                // Both signednesses share the function of the unsigned type.
                Some(known) if (Function { datatype: known.datatype.unsigned(), ..*known }) == function => {
                    *known = function;
                }
                Some(known) => {
                    return Err(format!(
                        "ncclDevFuncRowToId has the id {id} for both {known:?} and {function:?}: the order of its rows \
                         in this release is not known here"
                    ));
                }
            }
        }
        Ok(FunctionTable { functions })
    }

    /// The function of an id.
    pub(super) fn get(&self, id: u64) -> Option<Function> {
        *self.functions.get(usize::try_from(id).ok()?)?
    }
}

/// The functions in the order of the table's rows.
fn rows(release: u32) -> Vec<Function> {
    use Algorithm::{CollnetChain, CollnetDirect, Nvls, NvlsTree, Pat, Ring, Tree};

    const REDUCE: [Algorithm; 6] = [Tree, Ring, CollnetDirect, CollnetChain, Nvls, NvlsTree];
    const GATHER: [Algorithm; 4] = [Ring, CollnetDirect, Nvls, Pat];
    let types: &[Datatype] = if release >= 22400 { &Datatype::OF_NCCL } else { &Datatype::ALL };

    let mut rows = Vec::new();
    let copies = |rows: &mut Vec<Function>, collective, algorithms: &[Algorithm]| {
        for &algorithm in algorithms {
            rows.extend(Protocol::ALL.map(|protocol| Function {
                collective,
                reduction: None,
                datatype: Datatype::I8,
                algorithm,
                protocol,
            }));
        }
    };
    let reductions = |rows: &mut Vec<Function>, collective, algorithms: &[Algorithm]| {
        for reduction in Reduction::ALL {
            for &datatype in types {
                for &algorithm in algorithms {
                    rows.extend(Protocol::ALL.map(|protocol| Function {
                        collective,
                        reduction: Some(reduction),
                        datatype,
                        algorithm,
                        protocol,
                    }));
                }
            }
        }
    };
    rows.push(Function {
        collective: Collective::SendRecv,
        reduction: None,
        datatype: Datatype::I8,
        algorithm: Ring,
        protocol: Protocol::Simple,
    });
    copies(&mut rows, Collective::AllGather, &GATHER);
    copies(&mut rows, Collective::Broadcast, &[Ring]);
    if release >= 22900 {
        copies(&mut rows, Collective::AllGatherV, &[Ring]);
    }
    reductions(&mut rows, Collective::AllReduce, &REDUCE);
    reductions(&mut rows, Collective::Reduce, &[Ring]);
    reductions(&mut rows, Collective::ReduceScatter, &GATHER);
    rows
}

#[cfg(test)]
impl FunctionTable {
    /// A table in which every row has its own function, except that signed types share the
    /// unsigned one's.
    pub(super) fn made_up(release: u32) -> Vec<i32> {
        let rows = rows(release);
        let mut ids: Vec<i32> = (0..rows.len() as i32).collect();
        for (index, row) in rows.iter().enumerate() {
            let unsigned = Function { datatype: row.datatype.unsigned(), ..*row };
            if row.reduction.is_some() && unsigned != *row {
                ids[index] = rows.iter().position(|row| *row == unsigned).unwrap() as i32;
            }
        }
        ids.push(-1);
        ids
    }

    /// The id of a function.
    pub(super) fn id(&self, function: Function) -> u64 {
        self.functions.iter().position(|known| *known == Some(function)).unwrap() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_has_as_many_rows_as_its_library() {
        // From the symbols' sizes: 6668, 7988 and 8000 bytes.
        assert_eq!(FunctionTable::entries(22304), 1667);
        assert_eq!(FunctionTable::entries(22403), 1997);
        assert_eq!(FunctionTable::entries(22809), 1997);
        assert_eq!(FunctionTable::entries(22907), 2000);
        assert_eq!(FunctionTable::entries(23203), 2000);
    }

    #[test]
    fn an_id_leads_back_to_its_row() {
        for release in [22304, 22809, 23007] {
            let ids = FunctionTable::made_up(release);
            let functions = FunctionTable::invert(release, &ids).unwrap();
            for (row, &id) in rows(release).iter().zip(&ids) {
                let datatype = if row.reduction.is_some() { row.datatype.unsigned() } else { row.datatype };
                assert_eq!(functions.get(id as u64), Some(Function { datatype, ..*row }));
            }
            assert_eq!(functions.get(ids.len() as u64), None);
        }
    }

    #[test]
    fn rows_without_a_function_are_left_out() {
        let mut ids = FunctionTable::made_up(23007);
        ids[5] = -1;
        let functions = FunctionTable::invert(23007, &ids).unwrap();
        assert_eq!(functions.get(5), None);
    }

    #[test]
    fn a_table_in_another_order_is_refused() {
        let ids = FunctionTable::made_up(23007);
        assert!(FunctionTable::invert(22809, &ids).is_err(), "another length");
        let mut shared = ids.clone();
        shared[40] = ids[60];
        assert!(FunctionTable::invert(23007, &shared).unwrap_err().contains("for both"));
        let mut beyond = ids.clone();
        beyond[40] = 5000;
        assert!(FunctionTable::invert(23007, &beyond).unwrap_err().contains("5000"));
        let mut open = ids;
        *open.last_mut().unwrap() = 3;
        assert!(FunctionTable::invert(23007, &open).unwrap_err().contains("does not end"));
    }
}
