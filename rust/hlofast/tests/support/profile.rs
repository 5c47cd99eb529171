//! Reads bytes as a profile and checks what comes out.

use hlofast::profile::xplane::Space;
use hlofast::profile::{File, Loaded, NONE, load};
use hlofast::table::{
    profiled_devices, profiled_launches, profiled_lines, profiled_modules, profiled_programs,
    profiled_steps,
};

/// Whether `bytes` are a profile. Fails if what is read of them is not as it must be.
pub fn read(bytes: &[u8]) -> bool {
    let path = Some("host.xplane.pb".into());
    let file = File { bytes: bytes.to_vec().into(), path };
    let Ok(loaded) = load(&[file], Some(1 << 24)) else { return false };
    check(&loaded);
    loaded.spaces.iter().for_each(|space| walk(space));
    for module in &loaded.modules {
        loaded.module_text(module, None).ok();
    }
    profiled_devices(&loaded);
    profiled_programs(&loaded);
    profiled_launches(&loaded.profile);
    profiled_steps(&loaded.profile);
    profiled_modules(&loaded);
    profiled_lines(&loaded);
    true
}

/// Columns have one length, numbers refer to entries, events are sorted, and sums do not overflow.
fn check(loaded: &Loaded) {
    let profile = &*loaded.profile;
    let events = &profile.events;
    let count = events.len();
    let lengths = [events.program.len(), events.op.len(), events.label.len()];
    assert_eq!(lengths, [count; 3]);
    assert_eq!([events.start_ps.len(), events.duration_ps.len()], [count; 2]);
    assert_eq!(loaded.facts.len(), profile.devices.len());
    let mut last = (0, i64::MIN);
    for at in 0..count {
        assert!((events.track[at] as usize) < profile.tracks.len());
        let program = events.program[at];
        assert!(program == NONE || (program as usize) < profile.programs.len());
        for name in [events.op[at], events.label[at]] {
            assert!(name == NONE || profile.names.get(name).is_some());
        }
        let (start, duration) = (events.start_ps[at], events.duration_ps[at]);
        assert!(duration >= 0 && start.checked_add(duration).is_some());
        assert!(last <= (events.track[at], start));
        last = (events.track[at], start);
    }
    for track in &profile.tracks {
        assert!((track.device as usize) < profile.devices.len());
    }
    for device in &profile.devices {
        assert!((device.host as usize) < profile.hosts.len());
    }
    for launch in &profile.launches {
        assert!((launch.device as usize) < profile.devices.len());
        assert!((launch.program as usize) < profile.programs.len());
        assert!(launch.duration_ps >= 0);
        assert!(launch.start_ps.checked_add(launch.duration_ps).is_some());
    }
    for step in &profile.steps {
        assert!((step.host as usize) < profile.hosts.len());
        assert!(step.device.is_none_or(|device| (device as usize) < profile.devices.len()));
    }
}

/// Decodes every event and stat.
fn walk(space: &Space) {
    let whole = space.bytes();
    for plane in space.planes() {
        plane.own_stats(whole).count();
        for metadata in plane.event_metadata() {
            metadata.stats(whole).count();
            metadata.serialised(whole);
        }
        for line in plane.lines() {
            let mut count = 0;
            for event in line.events(whole) {
                event.stats().count();
                count += 1;
            }
            assert_eq!(count, line.event_count());
            assert!(line.event(whole, count).is_none());
        }
    }
}
