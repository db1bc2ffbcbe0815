package metrics

import (
	"path"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lgpu/lgpu/daemon"
)

// Label sets of HAMi's monitor.
var (
	ofContainer = []string{"namespace", "pod", "container", "vdevice_index", "device_uuid"}
	ofHost      = []string{"node", "device_index", "device_uuid", "device_type"}
)

// hamiFamilies are the metrics of HAMi's monitor that lgpu has figures for.
var hamiFamilies []*family

func hami(name, help string, labels []string) *family {
	f := describe(name, help, prometheus.GaugeValue, labels)
	hamiFamilies = append(hamiFamilies, f)
	return f
}

var (
	hamiUsed        = hami("hami_vgpu_memory_used_bytes", "Device memory in use by the container.", ofContainer)
	hamiLimit       = hami("hami_vgpu_memory_limit_bytes", "Limit of the container's device memory.", ofContainer)
	hamiMemory      = hami("hami_container_device_memory_bytes", "Device memory in use by the container.", ofContainer)
	hamiUtilisation = hami("hami_container_device_utilization_ratio",
		"Device time of the container, in percent (0 to 100).", ofContainer)
	hamiHostUsed = hami("hami_host_gpu_memory_used_bytes", "Device memory in use by everybody.", ofHost)
	hamiHostBusy = hami("hami_host_gpu_utilization_ratio", "Utilisation of the device, in percent (0 to 100).",
		ofHost)
	hamiHostMemoryBus = hami("hami_host_gpu_memory_controller_utilization_ratio",
		"Utilisation of the device's memory controller, in percent (0 to 100).", ofHost[1:])
)

func (e *emitter) hami(devices []daemon.Device, shown []*daemon.Directory, host string) {
	size := map[string]uint64{}
	for i := range devices {
		d := &devices[i]
		size[e.names[d.UUID]] = d.Memory
		labels := []string{host, strconv.Itoa(d.Index), e.names[d.UUID], hamiType(d.Name)}
		e.emit(hamiHostUsed, float64(d.MemoryUsed), labels...)
		if d.Utilisation >= 0 {
			e.emit(hamiHostBusy, float64(d.Utilisation), labels...)
		}
		if d.MemoryUtilisation >= 0 {
			e.emit(hamiHostMemoryBus, float64(d.MemoryUtilisation), labels[1:]...)
		}
	}
	for _, n := range shown {
		if n.Kind != daemon.KindLgpu {
			continue
		}
		for i := range n.Devices {
			d := &n.Devices[i]
			// What HAMi calls a container is an lgpu, and its pod the group around it, or the lgpu where there is none.
			group := strings.Trim(path.Dir(n.Path), "/")
			namespace, pod, nested := strings.Cut(group, "/")
			if !nested {
				pod = n.Name
			}
			device := e.name(d.Device)
			labels := []string{namespace, pod, n.Name, strconv.Itoa(i), device}
			limit := d.Effective.MemoryMax.Or(size[device])
			e.emit(hamiUsed, float64(d.MemoryUsed), labels...)
			e.emit(hamiLimit, float64(limit), labels...)
			e.emit(hamiMemory, float64(d.MemoryUsed), labels...)
			if d.Measured {
				e.emit(hamiUtilisation, hundredths(d.Delivered)*100, labels...)
			}
		}
	}
}

// hamiType is a device's name as HAMi writes it.
func hamiType(name string) string {
	if strings.HasPrefix(name, "NVIDIA") {
		return name
	}
	return "NVIDIA-" + name
}
