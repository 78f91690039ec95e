package gate

import (
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Words of the NFLOG configuration protocol (linux/netfilter/nfnetlink_log.h).
const (
	nfulnlMsgConfig  = 1
	nfulaCfgCmd      = 1
	nfulaCfgMode     = 2
	nfulaCfgQThresh  = 5
	nfulnlCmdBind    = 1
	nfulnlCopyPacket = 2
)

const (
	// packetCopy holds the headers that a record needs: IPv6 with extensions.
	packetCopy = 96
	// recordBuffer lets the worker be late without losing records.
	recordBuffer = 1 << 20
)

// openRecords opens and binds the NFLOG socket, for the worker to read.
func openRecords() (*os.File, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetReadBuffer(recordBuffer); err != nil {
		return nil, err
	}
	configure := func(attr uint16, data ...byte) error {
		ae := netlink.NewAttributeEncoder()
		ae.Bytes(attr, data)
		attrs, err := ae.Encode()
		if err != nil {
			return err
		}
		_, err = conn.Execute(netlink.Message{
			Header: netlink.Header{
				Type:  unix.NFNL_SUBSYS_ULOG<<8 | nfulnlMsgConfig,
				Flags: netlink.Request | netlink.Acknowledge,
			},
			Data: append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, nflogGroup}, attrs...),
		})
		return err
	}
	if err := configure(nfulaCfgCmd, nfulnlCmdBind); err != nil {
		return nil, fmt.Errorf("group %d: %w", nflogGroup, err)
	}
	if err := configure(nfulaCfgMode, 0, 0, 0, packetCopy, nfulnlCopyPacket, 0); err != nil {
		return nil, fmt.Errorf("copy mode: %w", err)
	}
	// Each record at once: a question about a probe must find it.
	if err := configure(nfulaCfgQThresh, 0, 0, 0, 1); err != nil {
		return nil, fmt.Errorf("threshold: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failed error
	if err := raw.Control(func(old uintptr) { fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	return os.NewFile(uintptr(fd), "records"), nil
}
