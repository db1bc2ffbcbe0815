package schedule

// Buckets of a meter, and their length.
const (
	buckets = 20
	bucket  = second / buckets
)

// meter sums time over the last second.
type meter struct {
	sum   [buckets]int64
	epoch [buckets]int64
}

// add spreads spent over from..to.
func (m *meter) add(from, to, spent int64) {
	if oldest := to - second; from < oldest {
		spent = mulDiv(spent, second, to-from)
		from = oldest
	}
	for from < to {
		end := min((from/bucket+1)*bucket, to)
		part := mulDiv(spent, end-from, to-from)
		m.put(from/bucket, part)
		spent -= part
		from = end
	}
	m.put(to/bucket, spent)
}

func (m *meter) put(epoch, spent int64) {
	i := epoch % buckets
	if m.epoch[i] != epoch {
		m.epoch[i], m.sum[i] = epoch, 0
	}
	m.sum[i] += spent
}

// share is how much was spent in the last second, in hundredths of a percent.
func (m *meter) share(now int64) uint32 {
	var sum int64
	for i := range buckets {
		if m.epoch[i] > now/bucket-buckets {
			sum += m.sum[i]
		}
	}
	return uint32(min(mulDiv(sum, int64(Whole), second-bucket+now%bucket), int64(Whole)))
}
