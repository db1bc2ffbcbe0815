package hw

import "time"

// The power of a device, in milliwatts: what it draws always, and what each unit draws beside that while a block runs on
// it. With 132 units it is about that of an H200.
const (
	idlePower = 40_000
	unitPower = 5_000
)

// Temperatures, in °C: without work, and with all units at work.
const (
	coolest = 30
	hottest = 70
)

// powerWindow is the time over which Power is the mean.
const powerWindow = 100 * time.Millisecond

// Energy is what the device has drawn since it was switched on, in millijoules. It is exact: units count by the device
// time in which they had a block, and the rest by the time that has passed, whether or not the host kept up.
func (d *Device) Energy() uint64 {
	units := d.unitTime.sum()
	for _, part := range d.parts {
		units += part.unitTime.sum()
	}
	return millijoules(idlePower, d.Clock.powered()) + millijoules(unitPower, Time(units))
}

// Divide says that other devices are parts of d: what their units draw, d draws. It is to be called before d is used.
func (d *Device) Divide(parts []*Device) { d.parts = parts }

// Power is what the device has drawn in the last tenth of a second, in milliwatts.
func (d *Device) Power() uint32 {
	units := d.unitTime.last(d.Clock.Now(), powerWindow)
	for _, part := range d.parts {
		units += part.unitTime.last(part.Clock.Now(), powerWindow)
	}
	return min(idlePower+uint32(unitPower*units/powerWindow), d.PowerLimit())
}

// PowerLimit is the most that the device draws, in milliwatts.
func (d *Device) PowerLimit() uint32 { return idlePower + unitPower*uint32(d.Config.Units) }

// Temperature is that of the device, in °C. It follows the power at once.
func (d *Device) Temperature() uint32 {
	most := d.PowerLimit() - idlePower
	return coolest + (hottest-coolest)*(d.Power()-idlePower)/most
}

// millijoules is what a power of so many milliwatts makes in a time.
func millijoules(milliwatts uint64, t Time) uint64 {
	seconds, rest := uint64(t/Time(time.Second)), uint64(t%Time(time.Second))
	return milliwatts*seconds + milliwatts*rest/uint64(time.Second)
}
