//! `recomputed-collectives`: collectives that run again because the forward pass is recomputed for
//! the backward pass.

use super::finding::Measure;
use super::program::{Program, bytes, counted, form, grouped, percent};
use super::site::{Rule, Site};
use crate::comms::{Collective, Moved};
use crate::flow::Phase;

pub(super) const RULE: Rule = Rule {
    code: "recomputed-collectives",
    what: "collectives repeated by recomputation for the backward pass",
    measure: Measure::Payload,
    find,
    message,
    remedy: "save the results of these collectives instead of recomputing them: name them with \
             checkpoint_name and add the name to the checkpoint policy (save_only_these_names), or \
             move jax.checkpoint so that the collective lies outside; saving gathered weights \
             costs the memory that sharding them saves",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let collectives = &program.collectives.collectives;
    let is_again = |collective: &Collective| {
        collective.executions.iter().any(|entry| entry.phase == Phase::Recompute)
    };
    if !collectives.iter().any(is_again) {
        return;
    }
    let links = program.links();
    // By link: payload of all collectives along it.
    let mut totals = vec![0u64; collectives.len()];
    for (collective, link) in collectives.iter().zip(&links) {
        let payload = collective.payload().and_then(|b| program.runs_of(collective).times(b));
        let total = link.and_then(|link| totals.get_mut(link as usize));
        if let (Some(payload), Some(total)) = (payload, total) {
            *total = total.saturating_add(payload);
        }
    }
    for (number, collective) in collectives.iter().enumerate() {
        let again = collective.executions.iter().filter(|entry| entry.phase == Phase::Recompute);
        let count = again
            .map(|entry| entry.count)
            .try_fold(0u64, |sum, count| sum.checked_add(u64::try_from(count?).ok()?));
        let (Some(_), Some(link), Some(payload)) =
            (collective.groups, links[number], collective.payload())
        else {
            continue;
        };
        if count == Some(0) || collective.group_size == Some(1) {
            continue;
        }
        let bytes = count.and_then(|count| payload.checked_mul(count));
        let total = totals.get(link as usize).copied().unwrap_or(0);
        let mut site = Site::new(collective.row)
            .sum("payload_bytes", bytes.unwrap_or(0))
            .sum("executions", count.unwrap_or(0))
            .common("group_payload_bytes", total)
            .of(number);
        site.bytes = bytes;
        site.phases = vec![Phase::Recompute];
        site.is_lower_bound = program.runs_of(collective).is_lower_bound;
        site.key = u64::from(link) * 2 + u64::from(collective.moved == Moved::Weight);
        site.kind = Some(collective.kind);
        site.is_anywhere = true;
        sites.push(site);
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let collective = site.collective(program);
    let what = match collective.map(|collective| collective.moved) {
        Some(Moved::Weight) => " of weights",
        _ => "",
    };
    let kind = site.kind.map_or("collective", |kind| kind.as_str());
    let place = collective.map(|collective| program.along(collective)).unwrap_or_default();
    let places = counted(site.places, kind, &format!("{kind}s"));
    if site.figure("executions") == 0 {
        // Call counts beyond 64 bits are unknown; so are totals that contain them.
        let are = form(site.places, "is", "are");
        return format!(
            "{places}{what} {place} {are} recomputed an unknown number of times per step"
        );
    }
    let times = match (site.places, site.figure("executions")) {
        (1, 1) => " once per step".to_owned(),
        (1, count) => format!(" {} times per step", grouped(count)),
        (_, count) => format!(", {} executions per step in total,", grouped(count)),
    };
    format!(
        "{places}{what} {place} {} recomputed{times} and {} {} of payload again, {} of the {} along \
         these devices",
        form(site.places, "is", "are"),
        form(site.places, "sends", "send"),
        bytes(site.figure("payload_bytes")),
        percent(site.figure("payload_bytes"), site.figure("group_payload_bytes")),
        bytes(site.figure("group_payload_bytes")),
    )
}
