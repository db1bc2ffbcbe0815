package main

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// moments are the forms in which people write a point in time, beside how long ago it is.
var moments = []string{
	time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly,
}

// clocks are those of today.
var clocks = []string{"15:04:05", "15:04"}

var errMoment = errors.New("a point in time is such as 2h or 3d (ago), 15:04 (today), 2006-01-02, \"2006-01-02 15:04\" or " +
	"2006-01-02T15:04:05Z")

// parseMoment reads a point in time, in the zone of now where the text names none.
func parseMoment(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSpace(text)
	for _, layout := range moments {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range clocks {
		if t, err := time.Parse(layout, text); err == nil {
			year, month, day := now.Date()
			return time.Date(year, month, day, t.Hour(), t.Minute(), t.Second(), 0, now.Location()), nil
		}
	}
	ago, err := parseAgo(text)
	if err != nil || ago < 0 {
		return time.Time{}, errMoment
	}
	return now.Add(-ago), nil
}

// parseAgo reads a length of time, which may begin with days.
func parseAgo(text string) (time.Duration, error) {
	const day, mostDays = 24 * time.Hour, 100 * 365
	count, rest, found := strings.Cut(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	days, err := strconv.ParseUint(count, 10, 32)
	if err != nil || days > mostDays {
		return 0, errMoment
	}
	if rest == "" {
		return time.Duration(days) * day, nil
	}
	more, err := time.ParseDuration(rest)
	if more < 0 || more >= day {
		return 0, errMoment
	}
	return time.Duration(days)*day + more, err
}
