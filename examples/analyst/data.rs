//! The database: SQLite, made from the committed files of the IANA Time Zone Database.
//!
//! It is made by the program and not by a build script, which would build SQLite a second time.

use std::error::Error;
use std::fs;
use std::path::Path;

use rusqlite::{Connection, Transaction, params};

const COUNTRIES: &str = include_str!("data/iso3166.tab");
const ZONES: &str = include_str!("data/zone1970.tab");

/// Raised when the tables change, so that a database of before is created again.
const LAYOUT: i64 = 1;

const TABLES: &str = "
    CREATE TABLE countries (code TEXT PRIMARY KEY, name TEXT NOT NULL);
    CREATE TABLE zones (name TEXT PRIMARY KEY, latitude REAL NOT NULL, longitude REAL NOT NULL, comment TEXT);
    CREATE TABLE zone_countries (
        zone TEXT NOT NULL REFERENCES zones, country TEXT NOT NULL REFERENCES countries,
        PRIMARY KEY (zone, country)
    );
";

/// Makes the database at `path` unless it is there.
///
/// It is made under another name and then moved: a process that is killed meanwhile leaves no half of one.
pub(crate) fn make(path: &Path) -> Result<(), Box<dyn Error>> {
    if layout_of(path).is_some_and(|layout| layout == LAYOUT) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let made = tempfile::NamedTempFile::new_in(folder)?;
    let mut connection = Connection::open(made.path())?;
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    fill(&transaction)?;
    transaction.pragma_update(None, "user_version", LAYOUT)?;
    transaction.commit()?;
    drop(connection);
    made.persist(path)?;
    Ok(())
}

/// The layout of the database at `path`, if there is one that can be read.
fn layout_of(path: &Path) -> Option<i64> {
    let connection = Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).ok()
}

fn fill(transaction: &Transaction<'_>) -> Result<(), Box<dyn Error>> {
    let mut add_country = transaction.prepare("INSERT INTO countries VALUES (?1, ?2)")?;
    for line in rows(COUNTRIES) {
        let (code, name) = line.split_once('\t').ok_or_else(|| fault("iso3166.tab", line))?;
        add_country.execute([code, name])?;
    }
    let mut add_zone = transaction.prepare("INSERT INTO zones VALUES (?1, ?2, ?3, ?4)")?;
    let mut add_link = transaction.prepare("INSERT INTO zone_countries VALUES (?1, ?2)")?;
    for line in rows(ZONES) {
        let mut fields = line.split('\t');
        let (Some(codes), Some(place), Some(name)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(fault("zone1970.tab", line));
        };
        let (latitude, longitude) = coordinates(place).ok_or_else(|| fault("zone1970.tab", line))?;
        add_zone.execute(params![name, latitude, longitude, fields.next()])?;
        for code in codes.split(',') {
            add_link.execute([name, code])?;
        }
    }
    Ok(())
}

fn rows(file: &str) -> impl Iterator<Item = &str> {
    file.lines().filter(|line| !line.starts_with('#'))
}

fn fault(file: &str, line: &str) -> Box<dyn Error> {
    format!("a line of {file} has another form than expected: {line:?}").into()
}

/// `+DDMM+DDDMM` or `+DDMMSS+DDDMMSS`, in degrees, north and east positive.
fn coordinates(place: &str) -> Option<(f64, f64)> {
    let middle = place.get(1..)?.find(['+', '-'])? + 1;
    let (latitude, longitude) = place.split_at(middle);
    Some((degrees(latitude, 2)?, degrees(longitude, 3)?))
}

fn degrees(text: &str, whole: usize) -> Option<f64> {
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    let digits = text.get(1..)?;
    let number = |from: usize, to: usize| digits.get(from..to)?.parse::<f64>().ok();
    let seconds = if digits.len() > whole + 2 { number(whole + 2, whole + 4)? } else { 0.0 };
    Some(sign * (number(0, whole)? + number(whole, whole + 2)? / 60.0 + seconds / 3600.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_of_both_forms() {
        assert_eq!(coordinates("+4230-00130"), Some((42.5, -1.5)));
        assert_eq!(coordinates("-690022+0393524"), Some((-(69.0 + 22.0 / 3600.0), 39.59)));
        assert_eq!(coordinates("north"), None);
    }

    #[test]
    fn the_whole_of_both_files_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.sqlite");
        make(&path).unwrap();
        // A second time nothing is made.
        make(&path).unwrap();
        let connection = Connection::open(&path).unwrap();
        let count = |table: &str| {
            let sql = format!("SELECT count(*) FROM {table}");
            connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!((count("countries"), count("zones"), count("zone_countries")), (249, 312, 423));
        let orphans = "SELECT count(*) FROM zone_countries WHERE country NOT IN (SELECT code FROM countries)";
        assert_eq!(connection.query_row(orphans, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    }
}
