package top

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/units"
)

// The JSON of lgpu top --once --json. docs/cli.md promises these names. Shares are in percent of a device's time,
// amounts in bytes; null is "not limited", "not known" or "not measured".
type (
	jsonDocument struct {
		Time    time.Time    `json:"time"`
		Daemon  jsonDaemon   `json:"daemon"`
		Devices []jsonDevice `json:"devices"`
	}
	jsonDaemon struct {
		Version string    `json:"version"`
		PID     int32     `json:"pid"`
		Started time.Time `json:"started"`
	}
	jsonDevice struct {
		UUID        string         `json:"uuid"`
		Index       int32          `json:"index"`
		Name        string         `json:"name"`
		Key         string         `json:"key"`
		Mode        string         `json:"mode"`
		Fault       *string        `json:"fault"`
		Units       uint32         `json:"units"`
		Utilisation *uint32        `json:"utilisation"`
		Memory      jsonUsed       `json:"memory"`
		Strangers   []jsonStranger `json:"strangers"`
		LGPUs       []jsonLGPU     `json:"lgpus"`
	}
	jsonUsed struct {
		Used  uint64 `json:"used"`
		Total uint64 `json:"total"`
	}
	jsonStranger struct {
		PID     int32  `json:"pid"`
		UID     uint32 `json:"uid"`
		Command string `json:"command"`
		Memory  uint64 `json:"memory"`
	}
	jsonLGPU struct {
		Path      string        `json:"path"`
		ID        string        `json:"id"`
		State     string        `json:"state"`
		Share     jsonShare     `json:"share"`
		Weight    uint32        `json:"weight"`
		Priority  string        `json:"priority"`
		Memory    jsonMemory    `json:"memory"`
		Busy      float64       `json:"busy_seconds"`
		Launches  uint64        `json:"launches"`
		Processes []jsonProcess `json:"processes"`
	}
	jsonShare struct {
		Asked     *float64 `json:"asked"`
		Delivered *float64 `json:"delivered"`
		Cap       *float64 `json:"cap"`
		Guarantee float64  `json:"guarantee"`
	}
	jsonMemory struct {
		Used  uint64  `json:"used"`
		Peak  uint64  `json:"peak"`
		Limit *uint64 `json:"limit"`
	}
	jsonProcess struct {
		PID     int32  `json:"pid"`
		UID     uint32 `json:"uid"`
		Command string `json:"command"`
		Memory  uint64 `json:"memory"`
	}
)

func writeJSON(w io.Writer, s *api.Snapshot) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(document(s)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func document(s *api.Snapshot) jsonDocument {
	doc := jsonDocument{
		Time: s.GetTime().AsTime(),
		Daemon: jsonDaemon{
			Version: s.GetDaemon().GetVersion(), PID: s.GetDaemon().GetPid(), Started: s.GetDaemon().GetStarted().AsTime(),
		},
		Devices: []jsonDevice{},
	}
	f := frame{snapshot: s}
	for _, d := range s.GetDevices() {
		j := jsonDevice{
			UUID: d.GetUuid(), Index: d.GetIndex(), Name: d.GetName(), Key: d.GetKey(), Mode: "temporal", Units: d.GetUnits(),
			Utilisation: d.Utilisation, Memory: jsonUsed{d.GetMemoryUsed(), d.GetMemoryTotal()},
			Strangers: []jsonStranger{}, LGPUs: []jsonLGPU{},
		}
		if d.GetMode() == api.Device_SPATIAL {
			j.Mode = "spatial"
		}
		if fault := d.GetFault(); fault != "" {
			j.Fault = &fault
		}
		for _, p := range d.GetProcesses() {
			if p.GetPath() == "" {
				j.Strangers = append(j.Strangers, jsonStranger{p.GetPid(), p.GetUid(), p.GetCommand(), p.GetMemory()})
			}
		}
		for _, n := range f.nodes(d.GetUuid()) {
			j.LGPUs = append(j.LGPUs, lgpu(n, d.GetUuid()))
		}
		doc.Devices = append(doc.Devices, j)
	}
	return doc
}

// hundredth makes hundredths of a percent percent; nil stays nil.
func hundredth(share *uint32) *float64 {
	if share == nil {
		return nil
	}
	percent := float64(*share) / 100
	return &percent
}

// lgpu is what the document has of a node on a device.
func lgpu(n *api.Node, device string) jsonLGPU {
	d := on(n, device)
	e := d.GetEffective()
	state, _ := words(d.GetState())
	var limit *uint64
	if e != nil {
		limit = e.MemoryMax
	}
	j := jsonLGPU{
		Path: n.GetPath(), ID: fmt.Sprintf("%016x", n.GetId()), State: state, Weight: e.GetWeight(), Priority: "normal",
		Share: jsonShare{
			Asked: hundredth(d.ShareAsked), Delivered: hundredth(d.ShareDelivered), Guarantee: float64(e.GetComputeMin()) / 100,
		},
		Memory: jsonMemory{Used: d.GetMemoryUsed(), Peak: d.GetMemoryPeak(), Limit: limit},
		Busy:   time.Duration(d.GetBusyNs()).Seconds(), Launches: d.GetLaunches(), Processes: []jsonProcess{},
	}
	if e.GetComputeMax() < units.Whole {
		j.Share.Cap = hundredth(&e.ComputeMax)
	}
	switch e.GetPriority() {
	case api.Priority_HIGH:
		j.Priority = "high"
	case api.Priority_LATENCY:
		j.Priority = "latency"
	}
	for _, c := range n.GetClients() {
		p := jsonProcess{PID: c.GetPid(), UID: c.GetUid(), Command: c.GetCommand()}
		for i, memory := range c.GetMemory() {
			if i < len(n.GetDevices()) && n.GetDevices()[i] == d {
				p.Memory = memory
			}
		}
		j.Processes = append(j.Processes, p)
	}
	return j
}
