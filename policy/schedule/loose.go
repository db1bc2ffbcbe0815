package schedule

// Heavy seats that leave much of their device idle in their turns may do more as guests. Programs that launch small kernels
// without waiting for them do: what they launch while another one has the device is there when they get it. Those that
// wait for each kernel do less, since the device is switched at each of their pauses. Which of them they are is tried: for
// two seconds no seat is heavy, and what they launch is compared with what they launched in turns. Turns are better only if
// all of them have lost: requests in a row beside one that saturates do less as a guest, but are answered in a millisecond
// and not in the time of a turn. A tenant that lies about its launches can have the worse of both for its device, in which
// everybody still has the shares asked for.

const (
	idleFrom        = 15     // percent of the device that heavy seats leave idle
	turnsFor  int64 = 1200e6 // in turns that have lasted for so long, ns
	spanMax   int64 = 1500e6 // what is said of a second that was longer is not used, ns
	trials          = 2      // seconds of a trial that count
	keepsFrom       = 950    // a seat with so many launches, in thousandths, has lost none
	trialMax  int64 = 5 * second

	// How long the better way stays until it is tried again; twice as long each time that it is found again. Guests are
	// there for a shorter time, since only turns show that they would be better.
	betterMin int64 = 30 * second
	looseMax  int64 = 120 * second
	firmMax   int64 = 960 * second
)

// turnNotes is what is known of how heavy seats use the turns on a device. Times in ns.
type turnNotes struct {
	taking   int64 // since when they have taken turns; 0: they do not
	switches int64 // among seats, since looked
	looked   int64 // when the device was last looked at

	trial  int64 // since when no seat is heavy, to see what they do; 0: that is not being tried
	tried  int64 // seconds of it that count, until now
	better spell // until its end no seat is heavy
	worse  spell // until its end nothing is tried
}

// spell is for how long something found out is taken to be so.
type spell struct{ lasts, end int64 }

// begin begins the next spell: a longer one if the last has ended not long ago.
func (s *spell) begin(now, most int64) {
	if s.lasts = min(2*s.lasts, most); s.lasts == 0 || now > s.end+2*betterMin {
		s.lasts = betterMin
	}
	s.end = now + s.lasts
}

// pace is how often a seat launches something.
type pace struct {
	counted int64 // launches, when the device was last looked at
	turns   int64 // launches a second in turns; 0: it took none
	guest   int64 // sum of those in the seconds of the trial
}

// loose reports whether no seat is to be heavy.
func (d *device) loose() bool {
	return d.turns.trial != 0 && d.now < d.turns.trial+trialMax || d.now < d.turns.better.end
}

// utilised takes which part of the last second the device worked, in percent.
func (d *device) utilised(percent int) {
	t := &d.turns
	passed := d.now - t.looked
	switched := mulDiv(t.switches*switching, 100, second)
	t.looked, t.switches = d.now, 0
	launched := d.launched(passed)
	switch {
	case t.trial != 0:
		if d.now >= t.trial+passed && passed <= spanMax {
			t.tried++
			for i, x := range d.seats {
				x.presence.pace.guest += launched[i]
			}
		}
		if t.tried == trials || d.now >= t.trial+trialMax {
			d.conclude()
		}
	case t.taking == 0 || d.now < t.taking+turnsFor || passed > turnsFor || d.now < t.worse.end:
	case int64(percent)+switched <= 100-idleFrom:
		d.try(launched)
	}
}

// launched returns how many launches a second each seat has made in the time that has passed.
func (d *device) launched(passed int64) []int64 {
	launched := make([]int64, len(d.seats))
	for i, x := range d.seats {
		p := &x.presence
		launched[i] = mulDiv(max(p.launches-p.pace.counted, 0), second, max(passed, 1))
		p.pace.counted = p.launches
	}
	return launched
}

// try begins a trial.
func (d *device) try(launched []int64) {
	d.turns.trial, d.turns.tried = d.now, 0
	for i, x := range d.seats {
		p := &x.presence.pace
		if p.turns, p.guest = 0, 0; x.heavy {
			p.turns = launched[i]
			x.turn(false)
		}
		x.presence.pauses = false
	}
	d.mark()
}

// conclude ends the trial: for a while no seat is heavy, or those that were are so again. Without a second that counts, or
// without launches, nothing has been found out.
func (d *device) conclude() {
	t := &d.turns
	t.trial = 0
	took, launched, kept := false, false, false
	for _, x := range d.seats {
		if p := x.presence.pace; p.turns > 0 && x.job.here() {
			took, launched = true, launched || p.guest > 0
			kept = kept || p.guest >= mulDiv(p.turns*t.tried, keepsFrom, 1000)
		}
	}
	known := took && launched && t.tried > 0
	if known && kept {
		t.better.begin(d.now, looseMax)
		return
	}
	if known {
		t.worse.begin(d.now, firmMax)
	}
	for _, x := range d.seats {
		x.turn(x.heavy || x.presence.pace.turns > 0)
	}
	d.mark()
}

// noteTurns notes since when heavy seats have taken turns.
func (d *device) noteTurns() {
	heavy, held := 0, false
	for _, x := range d.seats {
		if x.heavy && x.job.here() && (x.hungry() || x.resting()) {
			heavy++
			held = held || !x.open && !x.funded() // what is idle may be so for its maximum
		}
	}
	switch {
	case heavy < 2 || held:
		d.turns.taking = 0
	case d.turns.taking == 0:
		d.turns.taking = d.now
	}
}
