// Package logs keeps the daemon's log small, whoever makes it talk: lines that somebody can cause at will are bounded
// by kind and user and counted beyond (Limit), and the file does not grow without end (File).
package logs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Bounds of what is logged. A kind is the attribute kind of a line, or else its text; a user is the attribute uid.
const (
	// userBurst lines of one kind and user are written at once, and one more in every userPeriod.
	userBurst  = 20
	userPeriod = 5 * time.Second
	// kindBurst lines of one kind are written at once, and one more in every kindPeriod, whoever causes them.
	kindBurst  = 100
	kindPeriod = time.Second
	// maxUsers bounds the users of one kind that are told apart, maxKinds the kinds; what is beyond is one.
	maxUsers = 256
	maxKinds = 256
	// summaryPeriod is the time after which it is said how many lines of a kind were left out.
	summaryPeriod = 10 * time.Second
	// maxText is how many bytes of a line's text and of each of its values are written: a name that is refused is as long
	// as whoever is refused likes.
	maxText = 160
)

// Left is the text of the line that says how many lines of a kind were left out.
const Left = "lines left out of the log, as there were too many of their kind"

// Limit returns a handler that passes on to h what is within the bounds, and a line about what was not. Lines of level
// debug are not bounded: whoever asks for them wants them all.
func Limit(h slog.Handler) slog.Handler {
	return &limited{Handler: h, limits: &limits{kinds: map[string]*kind{}, now: time.Now, after: time.AfterFunc, out: h}}
}

// limited is a handler with attributes of its own and bounds that it shares with those it comes from.
type limited struct {
	slog.Handler
	limits *limits
	line   line // of the handler's attributes
}

// line is what bounds go by.
type line struct{ kind, user string }

// note reads an attribute.
func (l *line) note(a slog.Attr) {
	switch a.Key {
	case "kind":
		l.kind = a.Value.String()
	case "uid":
		l.user = a.Value.String()
	}
}

// limits are the bounds at work.
type limits struct {
	now   func() time.Time
	after func(time.Duration, func()) *time.Timer
	out   slog.Handler

	mu    sync.Mutex
	kinds map[string]*kind // guarded by mu
}

// kind is what is kept of lines of one text.
type kind struct {
	all   bucket
	users map[string]*bucket
	left  int // lines left out since the summary before; a summary is due while it is not 0
}

// bucket is when so many lines more could be written at once.
type bucket struct{ full time.Time }

// fits reports whether one more line may be written now, and counts it with take.
func (b *bucket) fits(now time.Time, burst int, period time.Duration) bool {
	return b.full.Sub(now) <= time.Duration(burst-1)*period
}

func (b *bucket) take(now time.Time, period time.Duration) {
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(period)
}

// Handle implements slog.Handler.
func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return l.Handler.Handle(ctx, r)
	}
	of := l.line
	r.Attrs(func(a slog.Attr) bool {
		of.note(a)
		return true
	})
	if of.kind == "" {
		of.kind = r.Message
	}
	if !l.limits.admit(of.kind, of.user) {
		return nil
	}
	return l.Handler.Handle(ctx, short(r))
}

// short is a line with what is too long in it cut.
func short(r slog.Record) slog.Record {
	out := slog.NewRecord(r.Time, r.Level, cut(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		switch a.Value.Kind() {
		case slog.KindString, slog.KindAny:
			if text := a.Value.String(); len(text) > maxText {
				a.Value = slog.StringValue(cut(text))
			}
		}
		out.AddAttrs(a)
		return true
	})
	return out
}

// cut cuts a text that is too long, and says so.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:maxText], len(text))
}

// WithAttrs implements slog.Handler.
func (l *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := &limited{Handler: l.Handler.WithAttrs(attrs), limits: l.limits, line: l.line}
	for _, a := range attrs {
		with.line.note(a)
	}
	return with
}

// WithGroup implements slog.Handler.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{Handler: l.Handler.WithGroup(name), limits: l.limits, line: l.line}
}

// admit reports whether a line is written, and counts it.
func (l *limits) admit(text, user string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.kinds[text] == nil && len(l.kinds) >= maxKinds {
		text = "others"
	}
	k := l.kinds[text]
	if k == nil {
		k = &kind{users: map[string]*bucket{}}
		l.kinds[text] = k
	}
	b := k.users[user]
	if b == nil {
		for name, other := range k.users {
			if len(k.users) >= maxUsers && !other.full.After(now) {
				delete(k.users, name)
			}
		}
		if len(k.users) >= maxUsers {
			user = "others"
		}
		if b = k.users[user]; b == nil {
			b = &bucket{}
			k.users[user] = b
		}
	}
	if b.fits(now, userBurst, userPeriod) && k.all.fits(now, kindBurst, kindPeriod) {
		b.take(now, userPeriod)
		k.all.take(now, kindPeriod)
		return true
	}
	if k.left++; k.left == 1 {
		l.after(summaryPeriod, func() { l.summarise(text, k) })
	}
	return false
}

// summarise says how many lines of a kind were left out.
func (l *limits) summarise(text string, k *kind) {
	l.mu.Lock()
	left := k.left
	k.left = 0
	l.mu.Unlock()
	r := slog.NewRecord(l.now(), slog.LevelInfo, Left, 0)
	r.AddAttrs(slog.Int("lines", left), slog.String("of", text))
	if ctx := context.Background(); l.out.Enabled(ctx, r.Level) {
		_ = l.out.Handle(ctx, r) // who cannot log cannot say so
	}
}
