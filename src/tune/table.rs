//! A table of measurements, from a file.
//!
//! Invariant: nothing here fails while a plan is made. Unreadable files are left out, and [`Tuning::notes`] lists them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::asked::{Asked, Fits};
use super::entry::Entry;
use super::file::{self, TUNING_VARIABLE, default_path};
use super::lookup::{self, Answer};
use crate::error::Result;

/// A table of measured plans, and notes of files that could not be read.
///
/// ```
/// use overlap_gemm::plan::{Operation, Partials, Problem};
/// use overlap_gemm::tune::{Anything, Asked, Tuning};
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let (operation, partials) = (Operation::AllGatherGemm, Partials::Bf16);
/// let asked = Asked { gpu: "NVIDIA H200", sms: 132, operation, problem: &problem, partials };
/// let answer = Tuning::none().look_up(&asked, &Anything).expect("there is a kernel for it");
/// assert!(answer.to_string().starts_with("modelled"));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    entries: Vec<Entry>,
    notes: Vec<String>,
}

impl Tuning {
    /// An empty table: predictions and rules decide everything.
    pub fn none() -> Tuning {
        Tuning::default()
    }

    /// The table of one file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tuning> {
        Ok(Tuning::of_entries(file::read(path.as_ref())?))
    }

    /// What plans are made by unless they are given another table: the file that `OVERLAP_GEMM_TUNING` names, else
    /// `overlap-gemm/tuning.json` in `$XDG_CACHE_HOME` or `~/.cache`, if it exists. Read once a process.
    pub fn found() -> &'static Tuning {
        static TABLE: OnceLock<Tuning> = OnceLock::new();
        TABLE.get_or_init(|| Tuning::find(|name| std::env::var_os(name)))
    }

    /// [`Tuning::found`], in any environment.
    fn find(variable: impl Fn(&str) -> Option<OsString>) -> Tuning {
        let named = variable(TUNING_VARIABLE).filter(|path| !path.is_empty());
        let path = match named {
            Some(none) if none == "none" => return Tuning::none(),
            Some(path) => Some(PathBuf::from(path)),
            None => default_path(variable).filter(|path| path.exists()),
        };
        match path.map(Tuning::from_file) {
            Some(Ok(table)) => table,
            Some(Err(error)) => Tuning { notes: vec![error.to_string()], ..Tuning::none() },
            None => Tuning::none(),
        }
    }

    /// Some entries.
    pub fn of_entries(entries: Vec<Entry>) -> Tuning {
        let mut table = Tuning::none();
        file::put(&mut table.entries, entries);
        table
    }

    /// All entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The files that could not be read, with the reasons.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The plan for a problem; `None`: no kernel computes it, or no way fits.
    pub fn look_up(&self, asked: &Asked<'_>, fits: &dyn Fits) -> Option<Answer> {
        lookup::look_up(&self.entries, asked, fits)
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::entry;
    use super::*;

    #[test]
    fn a_file_is_found_and_a_bad_one_is_told_of() {
        let folder =
            std::env::temp_dir().join(format!("overlap-gemm-found-{}", std::process::id()));
        let path = folder.join("overlap-gemm").join("tuning.json");
        let find = |tuning: Option<&str>, caches: &Path| {
            let (tuning, caches) = (tuning.map(OsString::from), caches.as_os_str().to_owned());
            Tuning::find(move |name| match name {
                TUNING_VARIABLE => tuning.clone(),
                "XDG_CACHE_HOME" => Some(caches.clone()),
                _ => None,
            })
        };
        assert_eq!(find(None, &folder), Tuning::none(), "no file is no fault");
        let one = entry([7, 8, 8], "a", 1, 10.0);
        file::record(&path, std::slice::from_ref(&one)).unwrap();
        assert_eq!(find(None, &folder), Tuning::of_entries(vec![one]));
        assert_eq!(find(Some("none"), &folder), Tuning::none());
        let missing = find(Some("/no/such/file.json"), &folder);
        assert!(missing.entries().is_empty());
        assert!(missing.notes()[0].contains("/no/such/file.json"), "{:?}", missing.notes());
        std::fs::write(&path, "{}").unwrap();
        let bad = find(None, &folder);
        assert!(bad.entries().is_empty());
        assert!(bad.notes()[0].contains("tuning.json is not used"), "{:?}", bad.notes());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
