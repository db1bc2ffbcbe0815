package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// cost is what the daemon takes at one moment.
type cost struct {
	rss            int64 // bytes
	files, threads int
	cpu            time.Duration
}

// costOf reads the cost of a process from /proc; zeros where it has ended.
func costOf(pid int) (c cost) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return c
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		number, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch key {
		case "VmRSS":
			c.rss = number << 10
		case "Threads":
			c.threads = int(number)
		}
	}
	if d, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		names, _ := d.Readdirnames(-1)
		d.Close()
		c.files = len(names)
	}
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 12 {
			user, _ := strconv.ParseInt(fields[11], 10, 64)
			system, _ := strconv.ParseInt(fields[12], 10, 64)
			c.cpu = time.Duration(user+system) * 10 * time.Millisecond // ticks are hundredths of a second
		}
	}
	return c
}

// seen is what was seen during a phase.
type seen struct {
	long       time.Duration
	most       cost
	logged     int64
	calls      []time.Duration // that were answered, but for those made while the host kept all waiting; sorted
	failed     []error         // calls that were not
	late       int             // calls that are left out
	scrapes    int
	unscraped  []error
	web        bool
	shares     []string
	unfair     []string
	daemonBusy float64 // processors
}

func (s *seen) String() string {
	return fmt.Sprintf("%.1f s: at most %d MB, %d descriptors, %d threads; %.1f KiB/s of log; ps %d calls, p50 %v p99 %v max %v, "+
		"%d failed, %d left out; %d scrapes, %d failed; daemon's processors %.2f; %s", s.long.Seconds(), s.most.rss>>20,
		s.most.files, s.most.threads, float64(s.logged)/1024/s.long.Seconds(), len(s.calls), s.quantile(0.5), s.quantile(0.99),
		s.quantile(1), len(s.failed), s.late, s.scrapes, len(s.unscraped), s.daemonBusy, strings.Join(s.shares, ", "))
}

// quantile of the calls' times.
func (s *seen) quantile(q float64) time.Duration {
	if len(s.calls) == 0 {
		return 0
	}
	return s.calls[min(int(q*float64(len(s.calls))), len(s.calls)-1)].Round(100 * time.Microsecond)
}

// logBurst is what the daemon may write at once beyond its rate: 100 lines of each of a few kinds, as docs/security.md
// says. The phases are held to the rate alone together.
const logBurst = 32 << 10

// enoughCalls is of how many calls a phase is judged by the slowest hundredth, which of fewer is a handful. The calls
// of shorter phases are judged together.
const enoughCalls = 500

// broken says which bounds were.
func (s *seen) broken() (all []string) {
	say := func(broken bool, format string, args ...any) {
		if broken {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	say(s.most.rss > maxRSS, "the daemon had %d MB, more than %d", s.most.rss>>20, maxRSS>>20)
	say(s.most.files > maxFiles, "the daemon had %d descriptors, more than %d", s.most.files, maxFiles)
	say(s.most.threads > maxThreads, "the daemon had %d threads, more than %d", s.most.threads, maxThreads)
	most := logBurst + int64(maxLog*s.long.Seconds())
	say(s.logged > most, "the daemon wrote %d KiB of log, more than %d", s.logged>>10, most>>10)
	say(len(s.failed) > 0, "%d calls of lgpu ps failed, such as: %v", len(s.failed), slices.Concat(s.failed, []error{nil})[0])
	say(len(s.calls)+s.late == 0, "no call of lgpu ps was answered")
	if len(s.calls) >= enoughCalls {
		slow := s.quantile(0.99)
		say(slow > psTime, "one of a hundred calls of lgpu ps took %v or more, which is above %v", slow, psTime)
	}
	say(s.quantile(1) > psWorst, "a call of lgpu ps took %v", s.quantile(1))
	say(!s.web && len(s.unscraped) > 0, "%d of %d scrapes failed, such as: %v", len(s.unscraped), s.scrapes,
		slices.Concat(s.unscraped, []error{nil})[0])
	return append(all, s.unfair...)
}

// watching is a phase that is being watched.
type watching struct {
	siege   *siege
	began   time.Time
	before  cost
	logged  int64
	meter   meter
	stop    context.CancelFunc
	running sync.WaitGroup
	// unmetered is why meter is not known.
	unmetered error

	mu   sync.Mutex
	seen seen // guarded by mu
}

// How often the monitor looks, and how long it waits for an answer.
const (
	lookEvery   = 20 * time.Millisecond
	callEvery   = 50 * time.Millisecond
	scrapeEvery = 200 * time.Millisecond
	callTime    = 5 * time.Second
)

// watch begins to look at the daemon.
func (s *siege) watch(web bool) *watching {
	ctx, stop := context.WithCancel(context.Background())
	w := &watching{siege: s, began: time.Now(), before: costOf(s.daemon.Process.Pid), logged: size(s.log), stop: stop}
	w.seen.web = web
	w.meter, w.unmetered = s.meter()
	every := func(period time.Duration, look func()) {
		w.running.Go(func() {
			tick := time.NewTicker(period)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					look()
				}
			}
		})
	}
	every(lookEvery, w.look)
	every(callEvery, w.call)
	every(scrapeEvery, w.scrape)
	return w
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

func (w *watching) look() {
	now := costOf(w.siege.daemon.Process.Pid)
	w.mu.Lock()
	defer w.mu.Unlock()
	most := &w.seen.most
	most.rss, most.files, most.threads = max(most.rss, now.rss), max(most.files, now.files), max(most.threads, now.threads)
}

// call asks what lgpu ps asks, on a connection of its own, and asks the reference, which is not attacked, the same.
// Where that is late too, the host kept all waiting, and the call is left out.
func (w *watching) call() {
	reference := make(chan time.Duration, 1)
	go func() {
		began := time.Now()
		_, _ = w.siege.reference.snapshot(callTime)
		reference <- time.Since(began)
	}()
	began := time.Now()
	_, err := w.siege.snapshot(callTime)
	took := time.Since(began)
	beside := <-reference
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		w.seen.failed = append(w.seen.failed, fmt.Errorf("after %v: %w", took.Round(time.Millisecond), err))
	case beside > psTime/2 && took < psWorst:
		w.seen.late++
	default:
		w.seen.calls = append(w.seen.calls, took)
	}
}

func (w *watching) scrape() {
	_, err := scrape(w.siege.metrics)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.scrapes++
	if err != nil {
		w.seen.unscraped = append(w.seen.unscraped, err)
	}
}

// scraper is another machine's, so to speak: it has an address of its own, so that bounds for each address do not make
// it pay for attackers.
var scraper = &http.Client{
	Timeout: callTime,
	Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 200, 0, 1)}}).DialContext,
	},
}

// scrape returns what /metrics shows, which must be well formed, and have what every daemon has.
func scrape(address string) (string, error) {
	reply, err := scraper.Get("http://" + address + "/metrics")
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return "", fmt.Errorf("scrape: %w", err)
	}
	if reply.StatusCode != http.StatusOK {
		return "", fmt.Errorf("scrape: %s: %.200s", reply.Status, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return "", fmt.Errorf("scrape: %w", err)
	}
	if families["lgpu_daemon_info"] == nil {
		return "", fmt.Errorf("scrape: no lgpu_daemon_info in %.200s", text)
	}
	return string(text), nil
}

// end stops looking and returns what was seen.
func (w *watching) end() *seen {
	w.stop()
	w.running.Wait()
	s := &w.seen
	now := time.Now()
	s.long = now.Sub(w.began)
	s.logged = size(w.siege.log) - w.logged
	s.daemonBusy = (costOf(w.siege.daemon.Process.Pid).cpu - w.before.cpu).Seconds() / s.long.Seconds()
	slices.Sort(s.calls)
	w.siege.judged += len(s.calls)
	w.siege.late += s.late
	after, err := w.siege.meter()
	if err = errors.Join(w.unmetered, err); err != nil {
		s.unfair = append(s.unfair, fmt.Sprintf("the neighbours' shares are unknown: %v", err))
	} else {
		var unfair []string
		s.shares, unfair = w.siege.shares(w.meter, after)
		if s.long >= judged {
			s.unfair = unfair
		}
	}
	return s
}
