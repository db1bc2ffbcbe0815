package region

// State is what an lgpu's counters say at one moment.
type State struct {
	Host    uint64 // bytes of page-locked host memory
	Devices []DeviceUse
}

// DeviceUse is what an lgpu uses of one device.
type DeviceUse struct {
	Used     uint64 // bytes
	Peak     uint64 // bytes, the most the lgpu ever held
	Share    uint32 // device time used over the last second, in hundredths of a percent
	Busy     uint64 // ns of device time used since the lgpu was made
	Launches uint64 // since the lgpu was made
}
