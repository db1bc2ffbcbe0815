package explain

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/record"

	"github.com/lgpu/lgpu/kube/slice"
)

// EventReason is that of the events.
const EventReason = "CapacityLacking"

// most is how many claims are explained in a look, those that have waited longest: each is held against every device.
const most = 200

// Watcher makes events of why claims wait, on the claims and on the pods that they were made for.
type Watcher struct {
	kube kubernetes.Interface
	// Period is how often it looks. A claim that is younger may only not have been looked at by the scheduler.
	Period time.Duration

	slices  listers.ResourceSliceLister
	claims  listers.ResourceClaimLister
	classes listers.DeviceClassLister
	events  record.EventRecorder
	told    map[types.UID]string // what was said of a claim last
}

// New returns a watcher of a cluster.
func New(kube kubernetes.Interface, period time.Duration) *Watcher {
	return &Watcher{kube: kube, Period: period, told: map[types.UID]string{}}
}

// Run looks until ctx ends. It is called once.
func (w *Watcher) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(w.kube, 0)
	all := factory.Resource().V1()
	w.slices, w.claims, w.classes = all.ResourceSlices().Lister(), all.ResourceClaims().Lister(), all.DeviceClasses().Lister()
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: w.kube.CoreV1().Events("")})
	w.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: slice.Driver})
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced && ctx.Err() == nil {
			return errors.New("the cluster does not list its " + kind.String())
		}
	}
	tick := time.NewTicker(w.Period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := w.look(time.Now()); err != nil {
				return err
			}
		}
	}
}

// look makes an event for each claim that waits and of which something else is to be said than before.
func (w *Watcher) look(now time.Time) error {
	published, err := w.slices.List(labels.Everything())
	claims, err2 := w.claims.List(labels.Everything())
	classes, err3 := w.classes.List(labels.Everything())
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	devices, ours := Devices(published, claims), ofDriver(classes)
	told := map[types.UID]string{}
	for _, c := range waiting(claims, now.Add(-w.Period)) {
		why := Reason(c, devices, ours)
		told[c.UID] = why
		if why == "" || why == w.told[c.UID] {
			continue
		}
		w.events.Event(c, corev1.EventTypeWarning, EventReason, why)
		for _, owner := range c.OwnerReferences {
			if owner.Kind == "Pod" && owner.APIVersion == "v1" {
				pod := &corev1.ObjectReference{Kind: owner.Kind, APIVersion: owner.APIVersion, Namespace: c.Namespace, Name: owner.Name, UID: owner.UID}
				w.events.Event(pod, corev1.EventTypeWarning, EventReason, "claim "+c.Name+": "+why)
			}
		}
	}
	w.told = told
	return nil
}

// waiting are the claims that have been there since a time without a device, the oldest first and at most so many.
func waiting(claims []*resourceapi.ResourceClaim, since time.Time) []*resourceapi.ResourceClaim {
	var all []*resourceapi.ResourceClaim
	for _, c := range claims {
		if c.Status.Allocation == nil && c.DeletionTimestamp == nil && !c.CreationTimestamp.After(since) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *resourceapi.ResourceClaim) int {
		if d := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); d != 0 {
			return d
		}
		return strings.Compare(string(a.UID), string(b.UID))
	})
	return all[:min(len(all), most)]
}

// ofDriver are the names of the classes whose selectors name the driver.
func ofDriver(classes []*resourceapi.DeviceClass) map[string]bool {
	ours := map[string]bool{}
	for _, c := range classes {
		for _, s := range c.Spec.Selectors {
			if s.CEL != nil && strings.Contains(s.CEL.Expression, `"`+slice.Driver+`"`) {
				ours[c.Name] = true
			}
		}
	}
	return ours
}
