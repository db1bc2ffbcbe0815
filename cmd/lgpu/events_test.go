package main

import (
	"testing"
	"time"

	"github.com/lgpu/lgpu/api"
)

// A point in time is read as people write it, in the zone of the one who asks.
func TestMoments(t *testing.T) {
	zone := time.FixedZone("east", 2*60*60)
	now := time.Date(2026, 11, 23, 17, 30, 0, 0, zone)
	for text, want := range map[string]string{
		"90s": "2026-11-23T17:28:30+02:00", "2h": "2026-11-23T15:30:00+02:00", "3d": "2026-11-20T17:30:00+02:00",
		"1d12h": "2026-11-22T05:30:00+02:00", "0s": "2026-11-23T17:30:00+02:00", " 15:04 ": "2026-11-23T15:04:00+02:00",
		"15:04:05": "2026-11-23T15:04:05+02:00", "2026-11-01": "2026-11-01T00:00:00+02:00",
		"2026-11-01 08:00": "2026-11-01T08:00:00+02:00", "2026-11-01T08:00": "2026-11-01T08:00:00+02:00",
		"2026-11-01T08:00:01Z": "2026-11-01T08:00:01Z", "2026-11-01T08:00:01.5+01:00": "2026-11-01T08:00:01+01:00",
		"": "", "-2h": "", "soon": "", "25:00": "", "2026-13-01": "", "3d2d": "", "1d-2h": "", "1d25h": "", "d": "",
		"99999999999d": "", "1e9h": "", "2": "",
	} {
		got, err := parseMoment(text, now)
		if formatted := got.Format(time.RFC3339); want != "" && (err != nil || formatted != want) || want == "" && err == nil {
			t.Errorf("%q is %s, %v; want %s", text, formatted, err, want)
		}
	}
}

// FuzzMoment: any text is an error, or a time that is the same again when it is written in full.
func FuzzMoment(f *testing.F) {
	for _, seed := range []string{"2h", "3d", "15:04", "2026-11-01", "2026-11-01T08:00:01Z", "-1h", "1d1d", "\x00"} {
		f.Add(seed)
	}
	now := time.Date(2026, 11, 23, 17, 30, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseMoment(text, now)
		if err != nil {
			return
		}
		if again, err := parseMoment(got.Format(time.RFC3339Nano), now); err != nil || !again.Equal(got) {
			t.Errorf("%q is %v, which is %v, %v", text, got, again, err)
		}
	})
}

// What lgpu run says at the end fits what the daemon has counted.
func TestRefusal(t *testing.T) {
	limit := uint64(1 << 30)
	few := "the program was refused device memory once, the last time 4 GiB, "
	for want, r := range map[string]*api.Refusals{
		"": nil,
		"the program was refused device memory 11 times, the last time 4 GiB, by the limit of /job, 1 GiB; --memory gives it more": {
			Count: 11, Bytes: 4 << 30, Device: "GPU-1", Limit: &limit, Path: "/job", MayRaise: true},
		"the program was refused page-locked host memory once, the last time 1 MiB, by the limit of /job, 1 GiB; " +
			"--host-memory gives it more": {Count: 1, Bytes: 1 << 20, Limit: &limit, Path: "/job", MayRaise: true},
		"the program was refused page-locked host memory once, the last time 1 MiB, by the limit of /team, 1 GiB; " +
			"lgpu set /team host.max=SIZE raises it": {Count: 1, Bytes: 1 << 20, Limit: &limit, Path: "/team", MayRaise: true},
		few + "by the limit of /team, 1 GiB; lgpu set /team memory.max=SIZE raises it": {
			Count: 1, Bytes: 4 << 30, Device: "GPU-1", Limit: &limit, Path: "/team", MayRaise: true, Raiser: "carol"},
		few + "by the limit of /team, 1 GiB, which an administrator can raise": {
			Count: 1, Bytes: 4 << 30, Device: "GPU-1", Limit: &limit, Path: "/team"},
		few + "by the limit of /team, 1 GiB, which carol or an administrator can raise": {
			Count: 1, Bytes: 4 << 30, Device: "GPU-1", Limit: &limit, Path: "/team", Raiser: "carol"},
		few + "since the device has no more": {Count: 1, Bytes: 4 << 30, Device: "GPU-1"},
	} {
		if got := refusal("/job", r); got != want {
			t.Errorf("%v: %q", r, got)
		}
	}
}
