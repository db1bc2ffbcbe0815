package contain

// What a container of an lgpu has, at paths that nothing inside of it can choose: the daemon's specification of the lgpu
// (daemon/cdi) has the runtime mount them, and the interposer there is stamped with them.
const (
	// SocketDir is the folder that the daemon made for the lgpu. It has nothing but the socket, so that a daemon that is
	// started anew can make another in the same folder.
	SocketDir = "/run/lgpu/container"
	// SocketName is the name of the socket in that folder.
	SocketName = "tenant.sock"
	// LibraryDir has the interposer, under its own name and those of the driver's two libraries.
	LibraryDir = "/run/lgpu/lib"
	// DriverDir has the driver's libraries.
	DriverDir = "/run/lgpu/driver"
	// CacheDir is a file system in memory, for the dynamic loader's cache.
	CacheDir = "/run/lgpu/cache"
	// SimSocket is that of a software GPU.
	SimSocket = "/run/lgpu/sim.sock"
)
