"""A wire between a program and a server that can be cut while an answer is under way."""
import socket
import threading

from servers.postgres import free_port


class Wire:
    def __init__(self, to_port):
        self.to_port = to_port
        self.port = free_port()
        self.lock = threading.Lock()
        self.pairs = []
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.to_port))
            except OSError:
                return
            with self.lock:
                self.pairs.append((client, server))
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    @staticmethod
    def _carry(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        Wire._end((source, sink))

    @staticmethod
    def _end(pair):
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended by itself

    def cut(self):
        """Every connection that is there now breaks; new ones are taken."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            self._end(pair)

    def remove(self):
        self.listener.close()
        self.cut()
