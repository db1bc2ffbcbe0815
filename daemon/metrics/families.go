package metrics

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// family is a metric's name, type and labels.
type family struct {
	name   string
	kind   prometheus.ValueType
	desc   *prometheus.Desc
	labels []string
}

// Label sets.
var (
	ofDevice          = []string{"device", "index"}
	ofDirectory       = []string{"path", "kind"}
	ofDirectoryDevice = []string{"path", "kind", "device"}
)

// families are all lgpu_* metrics, in the order of docs/metrics.md.
var families []*family

func gauge(name, help string, labels ...string) *family {
	return own(name, help, prometheus.GaugeValue, labels)
}

func counter(name, help string, labels ...string) *family {
	return own(name, help, prometheus.CounterValue, labels)
}

func histogramOf(name, help string, labels ...string) *family {
	return own(name, help, prometheus.UntypedValue, labels)
}

func own(name, help string, kind prometheus.ValueType, labels []string) *family {
	f := describe(name, help, kind, labels)
	families = append(families, f)
	return f
}

func describe(name, help string, kind prometheus.ValueType, labels []string) *family {
	return &family{name: name, kind: kind, labels: labels, desc: prometheus.NewDesc(name, help, labels, nil)}
}

var (
	daemonInfo     = gauge("lgpu_daemon_info", "The daemon, always 1.", "version", "police")
	daemonStart    = gauge("lgpu_daemon_start_time_seconds", "When the daemon started, in seconds since 1970.")
	daemonReady    = gauge("lgpu_daemon_ready", "1 if programs can be served, else 0: /readyz says why not.")
	daemonRestarts = counter("lgpu_daemon_restarts_total", "Daemons that took over the state of one before.")
	hostBudget     = gauge("lgpu_host_budget_bytes", "Host memory that copies of memory that has left its device may take.")
	hostCopies     = gauge("lgpu_host_copies_bytes", "Host memory that copies of memory that has left its device take.")
	diskCopies     = gauge("lgpu_disk_copies_bytes", "Room on disks that copies take for which there is no host memory.")
	events         = counter("lgpu_events_total", "What happened since the daemon started, by kind.", "kind")
	nodes          = gauge("lgpu_nodes", "Groups and lgpus in the tree.", "kind")
	nodesOmitted   = gauge("lgpu_nodes_omitted", "Groups and lgpus without metrics, because there are too many.")

	deviceInfo = gauge("lgpu_device_info", "A device, always 1.",
		"device", "index", "name", "key", "pci", "mode", "sim", "parent")
	deviceHealthy    = gauge("lgpu_device_healthy", "1 for a device that works, 0 for one that does not.", ofDevice...)
	deviceMemory     = gauge("lgpu_device_memory_size_bytes", "The device's memory.", ofDevice...)
	deviceMemoryUsed = gauge("lgpu_device_memory_used_bytes", "Device memory in use by everybody, as the driver says.",
		ofDevice...)
	deviceUnits       = gauge("lgpu_device_compute_units", "Compute units of the device.", ofDevice...)
	deviceUtilisation = gauge("lgpu_device_utilisation_ratio", "Part of the driver's last sample in which a kernel ran.",
		ofDevice...)
	deviceMemoryActive = gauge("lgpu_device_memory_utilisation_ratio",
		"Part of the driver's last sample in which device memory was read or written.", ofDevice...)
	deviceStrangers = gauge("lgpu_device_stranger_processes", "Processes on the device that belong to no lgpu.",
		ofDevice...)
	strangersMemory = gauge("lgpu_device_stranger_memory_bytes", "Device memory of processes that belong to no lgpu.",
		ofDevice...)
	deviceEnergy = counter("lgpu_device_energy_joules_total",
		"What the device has drawn, by its own counter; absent without one.", ofDevice...)
	deviceOtherEnergy = counter("lgpu_device_other_energy_joules_total",
		"What the device has drawn since the daemon first saw it, less what went to lgpus.", ofDevice...)
	devicePower       = gauge("lgpu_device_power_watts", "What the device draws, as the driver says.", ofDevice...)
	deviceTemperature = gauge("lgpu_device_temperature_celsius", "Temperature of the device.", ofDevice...)
	sliceLength       = histogramOf("lgpu_device_slice_seconds", "How long lgpus had the device at a stretch.", "device")
	sliceSwitch       = histogramOf("lgpu_device_slice_switch_seconds",
		"Time in which nobody had the device between slices of two lgpus that followed within 10 ms.", "device")
	slicesMissed = counter("lgpu_slices_missed_total",
		"Slices that were not counted, because there were too many at once.")

	nodeInfo    = gauge("lgpu_info", "A group or lgpu, always 1.", "path", "kind", "persistent", "gang")
	nodeClients = gauge("lgpu_clients", "Processes that use the lgpu.", ofDirectory...)
	nodeState   = gauge("lgpu_state", "1 for the state that the lgpu is in on the device, 0 for the others.", "path",
		"kind", "device", "state")
	hostUsed = gauge("lgpu_host_memory_used_bytes", "Page-locked host memory in use.", ofDirectory...)
	hostMax  = gauge("lgpu_host_max_bytes", "host.max, most page-locked host memory; absent without one.",
		ofDirectory...)
	memoryUsed     = gauge("lgpu_memory_used_bytes", "Device memory in use.", ofDirectoryDevice...)
	memoryResident = gauge("lgpu_memory_resident_bytes",
		"What of the memory in use is on the device; absent where nothing may leave it.", ofDirectoryDevice...)
	memoryEvicted = gauge("lgpu_memory_evicted_bytes",
		"What of the memory in use has left the device; absent where nothing may leave it.", ofDirectoryDevice...)
	swaps      = counter("lgpu_swaps_total", "Turns that began with memory that came for them, where not all memory fits.")
	swapHits   = counter("lgpu_swap_hits_total", "Such turns of lgpus that had been expected to be next, so that memory was loaded ahead.")
	swapForced = counter("lgpu_swap_forced_total",
		"Such turns of lgpus that do not fit beside the one before.")
	swapLeastForced = counter("lgpu_swap_forced_least_total", "How many of those there would be in the best order.")
	swapBytes       = counter("lgpu_swap_bytes_total",
		"Memory that such turns needed, what of it had not come ahead, and what came ahead in vain.", "kind")
	swapWait   = counter("lgpu_swap_wait_seconds_total", "For how long memory came in such turns while others with work had made room.")
	turnLength = gauge("lgpu_turn_seconds", "How long a turn is at present where not all memory fits.", "device")

	evictedBytes = counter("lgpu_evicted_bytes_total",
		"Bytes that have left the device since the lgpu was made; absent where nothing may.", ofDirectoryDevice...)
	evictedClean = counter("lgpu_evicted_clean_bytes_total",
		"Bytes of these that were not copied: zeros, and what was as its copy still.", ofDirectoryDevice...)
	residenceFailed = gauge("lgpu_residence_failed",
		"1 if memory that should leave the device, or come back, does not; absent where nothing may leave it.", ofDirectoryDevice...)
	suspended     = gauge("lgpu_suspended", "1 if the file memory.suspend of the group or lgpu is 1.", ofDirectory...)
	memoryPeak    = gauge("lgpu_memory_peak_bytes", "The most device memory that was ever in use.", ofDirectoryDevice...)
	memoryGranted = gauge("lgpu_memory_granted_bytes", "Device memory that may be used without asking the daemon.",
		ofDirectoryDevice...)
	memoryMax = gauge("lgpu_memory_max_bytes", "memory.max, most device memory, with the groups' above; absent without one.",
		ofDirectoryDevice...)
	computeMax = gauge("lgpu_compute_max_ratio", "compute.max, most device time, with the groups' above; 1 is no limit.", ofDirectoryDevice...)
	computeMin = gauge("lgpu_compute_min_ratio", "compute.min, device time that it gets whenever it wants it.", ofDirectoryDevice...)
	weight     = gauge("lgpu_weight", "lgpu.weight, against siblings.", ofDirectoryDevice...)
	shareAsked = gauge("lgpu_share_asked_ratio",
		"Part of device time that it is entitled to now; absent where that is not measured.", ofDirectoryDevice...)
	shareGiven = gauge("lgpu_share_delivered_ratio",
		"Part of device time over the last second; absent where that is not measured.", ofDirectoryDevice...)
	busy = counter("lgpu_compute_busy_seconds_total",
		"Time with work in flight since the lgpu was made, but for times alone without a cap.", ofDirectoryDevice...)
	launches = counter("lgpu_launches_total",
		"Launches since the lgpu was made, but for times alone without a cap.", ofDirectoryDevice...)
	energyUsed = counter("lgpu_energy_joules_total",
		"What was used of the device's energy, since it was made; absent where the device has no counter.",
		ofDirectoryDevice...)
	powerDrawn = gauge("lgpu_power_watts", "What it draws of the device's power, over about the last second.",
		ofDirectoryDevice...)
	nodeSlices = counter("lgpu_slices_total",
		"Slices that the lgpu had; it has the device without slices while nobody else wants it.", ofDirectoryDevice...)
)

// emitter turns values into metrics.
type emitter struct {
	metrics chan<- prometheus.Metric
	names   map[gpu.UUID]string // label device
	indexes map[gpu.UUID]string // label index
}

func newEmitter(metrics chan<- prometheus.Metric, devices []daemon.Device) *emitter {
	e := &emitter{metrics: metrics, names: map[gpu.UUID]string{}, indexes: map[gpu.UUID]string{}}
	for i := range devices {
		d := &devices[i]
		e.names[d.UUID] = d.Identity()
		e.indexes[d.UUID] = d.Ordinal()
	}
	return e
}

// emit sends one metric. The labels' number is this package's own doing, so that a wrong one may panic, and tests see
// it.
func (e *emitter) emit(f *family, value float64, labels ...string) {
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "�") // the one thing about a value that Prometheus refuses
	}
	e.metrics <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
}

// limit emits a limit, or nothing where there is none.
func (e *emitter) limit(f *family, b limits.Bytes, labels ...string) {
	if n, limited := b.Limit(); limited {
		e.emit(f, float64(n), labels...)
	}
}

// name is a device's label; of one that has just gone, its UUID.
func (e *emitter) name(device gpu.UUID) string {
	if name, known := e.names[device]; known {
		return name
	}
	return device.String()
}

func (e *emitter) daemon(s *daemon.Snapshot, c daemon.Counters) {
	e.emit(daemonInfo, 1, s.Daemon.Version, string(s.Daemon.Police))
	e.emit(daemonStart, float64(s.Daemon.Started.UnixMilli())/1e3)
	e.emit(daemonReady, truth(len(unready(*s)) == 0))
	e.emit(daemonRestarts, float64(s.Daemon.Restarts))
	e.emit(hostBudget, float64(s.Daemon.HostBudget))
	e.emit(hostCopies, float64(s.Daemon.HostCopies))
	e.emit(diskCopies, float64(s.Daemon.DiskCopies))
	e.turns(c.Turns)
	count := map[daemon.Kind]uint64{} // from the start, so that the first event of a kind is a rise from zero
	for _, kind := range daemon.Kinds() {
		count[kind] = 0
	}
	maps.Copy(count, c.Events)
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		e.emit(events, float64(count[kind]), string(kind))
	}
	number := map[string]int{}
	for i := range s.Directories {
		number[s.Directories[i].Kind]++
	}
	for _, kind := range []string{daemon.KindGroup, daemon.KindLgpu} {
		e.emit(nodes, float64(number[kind]), kind)
	}
}

// turns are those of lgpus whose memory does not fit together.
func (e *emitter) turns(t daemon.Turns) {
	e.emit(swaps, float64(t.Switches))
	e.emit(swapHits, float64(t.Hits))
	e.emit(swapForced, float64(t.Forced))
	e.emit(swapLeastForced, t.LeastForced)
	e.emit(swapBytes, float64(t.Size), "needed")
	e.emit(swapBytes, float64(t.Exposed), "exposed")
	e.emit(swapBytes, float64(t.Wasted), "wasted")
	e.emit(swapWait, t.Waited.Seconds())
	for _, d := range slices.SortedFunc(maps.Keys(t.Length), func(a, b gpu.UUID) int { return slices.Compare(a[:], b[:]) }) {
		e.emit(turnLength, t.Length[d].Seconds(), e.name(d))
	}
}

func (e *emitter) device(d *daemon.Device) {
	name, index := e.names[d.UUID], e.indexes[d.UUID]
	parent := ""
	if d.MIG() {
		parent = d.Parent.String()
	}
	e.emit(deviceInfo, 1, name, index, d.Name, d.Key(), d.PCI, d.Mode, d.Sim, parent)
	e.emit(deviceHealthy, truth(d.Healthy), name, index)
	e.emit(deviceMemory, float64(d.Memory), name, index)
	e.emit(deviceMemoryUsed, float64(d.MemoryUsed), name, index)
	e.emit(deviceUnits, float64(d.Units), name, index)
	if d.Utilisation >= 0 {
		e.emit(deviceUtilisation, float64(d.Utilisation)/100, name, index)
	}
	if d.MemoryUtilisation >= 0 {
		e.emit(deviceMemoryActive, float64(d.MemoryUtilisation)/100, name, index)
	}
	e.energy(d, name, index)
	strangers, held := 0, uint64(0)
	for i := range d.Processes {
		if d.Processes[i].Path == "" {
			strangers++
			held += d.Processes[i].Memory
		}
	}
	e.emit(deviceStrangers, float64(strangers), name, index)
	e.emit(strangersMemory, float64(held), name, index)
}

// energy emits what a device draws, as far as that is known.
func (e *emitter) energy(d *daemon.Device, labels ...string) {
	if d.Energy != nil {
		e.emit(deviceEnergy, float64(*d.Energy)/1e3, labels...)
	}
	if d.OtherEnergy != nil {
		e.emit(deviceOtherEnergy, float64(*d.OtherEnergy)/1e3, labels...)
	}
	if d.Power != nil {
		e.emit(devicePower, float64(*d.Power)/1e3, labels...)
	}
	if d.Temperature != nil {
		e.emit(deviceTemperature, float64(*d.Temperature), labels...)
	}
}

func (e *emitter) node(n *daemon.Directory) {
	e.emit(nodeInfo, 1, n.Path, n.Kind, strconv.FormatBool(n.Persistent), n.Gang)
	e.emit(hostUsed, float64(n.HostUsed), n.Path, n.Kind)
	e.limit(hostMax, n.HostMax, n.Path, n.Kind)
	if n.Kind == daemon.KindLgpu {
		e.emit(nodeClients, float64(len(n.Clients)), n.Path, n.Kind)
	}
	e.emit(suspended, truth(n.Suspend), n.Path, n.Kind)
	for i := range n.Devices {
		d := &n.Devices[i]
		labels := []string{n.Path, n.Kind, e.name(d.Device)}
		e.emit(memoryUsed, float64(d.MemoryUsed), labels...)
		e.emit(memoryPeak, float64(d.MemoryPeak), labels...)
		if d.Resident != nil && d.Evicted != nil {
			e.emit(memoryResident, float64(*d.Resident), labels...)
			e.emit(memoryEvicted, float64(*d.Evicted), labels...)
			e.emit(residenceFailed, truth(d.ResidenceFailure != ""), labels...)
		}
		e.limit(memoryMax, d.Effective.MemoryMax, labels...)
		e.emit(computeMax, hundredths(d.Effective.ComputeMax), labels...)
		e.emit(computeMin, hundredths(d.Effective.ComputeMin), labels...)
		e.emit(weight, float64(d.Effective.Weight), labels...)
		if d.Measured {
			e.emit(shareAsked, hundredths(d.Asked), labels...)
			e.emit(shareGiven, hundredths(d.Delivered), labels...)
		}
		if d.Energy != nil { // a group's does not fall either
			e.emit(energyUsed, float64(*d.Energy)/1e3, labels...)
			e.emit(powerDrawn, float64(*d.Power)/1e3, labels...)
		}
		if n.Kind != daemon.KindLgpu {
			continue // a group's sums would fall when an lgpu goes, which a counter must not
		}
		e.emit(busy, d.Busy.Seconds(), labels...)
		e.emit(launches, float64(d.Launches), labels...)
		if d.Moved != nil {
			e.emit(evictedBytes, float64(d.Moved.Evicted), labels...)
			e.emit(evictedClean, float64(d.Moved.Clean), labels...)
		}
		e.limit(memoryGranted, d.MemoryGranted, labels...)
		for _, state := range daemon.States {
			e.emit(nodeState, truth(d.State == state), append(labels[:3:3], state)...)
		}
	}
}

// hundredths makes a share of hundredths of a percent a ratio.
func hundredths(share uint32) float64 { return float64(share) / 1e4 }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
