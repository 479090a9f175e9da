//! A table of measurements, from a file or from the crate.
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
/// use overlap_gemm::plan::Problem;
/// use overlap_gemm::tune::{Anything, Asked, Tuning};
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let asked = Asked { gpu: "NVIDIA H200", sms: 132, problem: &problem };
/// let answer = Tuning::shipped().look_up(&asked, &Anything).expect("there is a kernel for it");
/// assert!(answer.to_string().starts_with("tuned: measured for this problem"));
/// let answer = Tuning::none().look_up(&asked, &Anything).expect("there is a kernel for it");
/// assert!(answer.to_string().starts_with("modelled"));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    entries: Vec<Entry>,
    notes: Vec<String>,
}

/// The table that comes with the crate: H200.
const SHIPPED: &str = include_str!("h200.json");

impl Tuning {
    /// An empty table: predictions and rules decide everything.
    pub fn none() -> Tuning {
        Tuning::default()
    }

    /// The table that ships with the crate.
    pub fn shipped() -> &'static Tuning {
        static TABLE: OnceLock<Tuning> = OnceLock::new();
        TABLE.get_or_init(|| match file::parse(SHIPPED) {
            Ok(entries) => Tuning::of_entries(entries),
            // A test reads it, so this is never seen.
            Err(why) => {
                Tuning { notes: vec![format!("the crate's own table: {why}")], ..Tuning::none() }
            }
        })
    }

    /// The table of one file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tuning> {
        Ok(Tuning::of_entries(file::read(path.as_ref())?))
    }

    /// What plans are made by unless they are given another table: the user's file, before what ships with the
    /// crate. The file is the one that `OVERLAP_GEMM_TUNING` names, else `overlap-gemm/tuning.json` in
    /// `$XDG_CACHE_HOME` or `~/.cache`, if it exists. Read once a process.
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
        let mut table = Tuning::shipped().clone();
        match path.map(Tuning::from_file) {
            // The user's is believed where both speak of the same problem.
            Some(Ok(file)) => file::put(&mut table.entries, file.entries),
            Some(Err(error)) => table.notes.push(error.to_string()),
            None => {}
        }
        table
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
    use super::super::asked::Anything;
    use super::super::lookup::Source;
    use super::super::made_up::entry;
    use super::*;
    use crate::plan::{ElementTypes, Problem};

    #[test]
    fn what_ships_can_be_read() {
        assert_eq!(Tuning::shipped().notes(), [""; 0]);
        // As `tune` writes it, so that writing it again changes nothing else.
        assert_eq!(file::text(Tuning::shipped().entries()).unwrap(), SHIPPED);
    }

    #[test]
    fn what_ships_is_one_winner_a_problem_and_is_planned() {
        for Entry { family, shape, way, multiplying, .. } in Tuning::shipped().entries() {
            let ElementTypes { a, b, d } = family.elements;
            let problem = Problem::builder(shape.m.into(), shape.n.into(), shape.k.into())
                .ranks(family.ranks.into())
                .elements(a, b, d)
                .scaling(family.scaling)
                .b_layout(family.b_layout)
                .build()
                .unwrap();
            let asked = Asked { gpu: &family.gpu, sms: 132, problem: &problem };
            let answer = Tuning::shipped().look_up(&asked, &Anything).unwrap();
            assert!(matches!(answer.source, Source::Tuned(_)), "{problem}: {answer}");
            let planned = (&answer.way, answer.multiplying.as_ref());
            assert_eq!(planned, (way, Some(multiplying)));
        }
        assert!(SHIPPED.len() < 100_000, "{} bytes are more than winners", SHIPPED.len());
    }

    #[test]
    fn a_user_s_file_goes_before_what_ships_and_a_bad_one_is_told_of() {
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
        assert_eq!(find(None, &folder), *Tuning::shipped(), "no file is no fault");
        file::record(&path, &[entry([7, 8, 8], "a", 1, 10.0)]).unwrap();
        let found = find(None, &folder);
        assert_eq!(found.entries().len(), Tuning::shipped().entries().len() + 1);
        // Where both speak of the same problem, the user's is believed.
        let mut again = Tuning::shipped().entries()[0].clone();
        again.driver = "another".into();
        file::record(&path, std::slice::from_ref(&again)).unwrap();
        let found = find(None, &folder);
        assert_eq!(found.entries().len(), Tuning::shipped().entries().len() + 1);
        assert!(found.entries().contains(&again));
        assert_eq!(find(Some("none"), &folder), Tuning::none());
        let missing = find(Some("/no/such/file.json"), &folder);
        assert_eq!(missing.entries(), Tuning::shipped().entries());
        assert!(missing.notes()[0].contains("/no/such/file.json"), "{:?}", missing.notes());
        std::fs::write(&path, "{}").unwrap();
        let bad = find(None, &folder);
        assert_eq!(bad.entries(), Tuning::shipped().entries());
        assert!(bad.notes()[0].contains("tuning.json is not used"), "{:?}", bad.notes());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
