package klamm.test;

import io.delta.storage.CloseableIterator;
import io.delta.storage.LogStore;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/** Another log store, whose process group gets a signal when the files of a batch are written and its commit is not. */
public class KillingLogStore extends LogStore {
    private static final long PAUSE_MILLISECONDS = 5_000;
    private static final AtomicInteger BATCHES = new AtomicInteger();
    private final LogStore store;

    public KillingLogStore(Configuration settings) throws ReflectiveOperationException {
        super(settings);
        Class<?> wrapped = Class.forName(settings.get("klamm.test.store"));
        store = (LogStore) wrapped.getConstructor(Configuration.class).newInstance(settings);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration settings)
            throws IOException {
        List<String> lines = new ArrayList<>();
        actions.forEachRemaining(lines::add);
        boolean isBatch = lines.stream().anyMatch(line -> line.contains("\\\"batch\\\":"));
        if (isBatch && BATCHES.incrementAndGet() == settings.getInt("klamm.test.times", 0)) {
            String words = "kill -" + settings.get("klamm.test.signal") + " -" + settings.get("klamm.test.group");
            new ProcessBuilder("sh", "-c", words).start();
            pause(); // the signal comes meanwhile; a process that is only stopped goes on here later
        }
        store.write(path, lines.iterator(), overwrite, settings);
    }

    private static void pause() throws IOException {
        try {
            Thread.sleep(PAUSE_MILLISECONDS);
        } catch (InterruptedException interrupted) {
            throw new IOException(interrupted);
        }
    }

    @Override
    public CloseableIterator<String> read(Path path, Configuration settings) throws IOException {
        return store.read(path, settings);
    }

    @Override
    public Iterator<FileStatus> listFrom(Path path, Configuration settings) throws IOException {
        return store.listFrom(path, settings);
    }

    @Override
    public Path resolvePathOnPhysicalStorage(Path path, Configuration settings) throws IOException {
        return store.resolvePathOnPhysicalStorage(path, settings);
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration settings) throws IOException {
        return store.isPartialWriteVisible(path, settings);
    }
}
