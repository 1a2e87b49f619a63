package klamm.lake;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.PutObjectRequest;
import software.amazon.awssdk.services.s3.model.S3Exception;

/** Writes each Delta commit with one PUT that the store refuses if the object exists, so two writers never both win. */
public class ConditionalPutLogStore extends HadoopFileSystemLogStore {
    public ConditionalPutLogStore(Configuration configuration) {
        super(configuration);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        if (!(files instanceof S3AFileSystem)) {
            throw new IOException("not an s3a path: " + path);
        }
        StringBuilder text = new StringBuilder();
        while (actions.hasNext()) {
            text.append(actions.next()).append('\n');
        }
        S3AFileSystem store = (S3AFileSystem) files;
        S3Client client = store.getS3AInternals().getAmazonS3Client("klamm commits to a Delta log");
        PutObjectRequest.Builder request =
                PutObjectRequest.builder().bucket(store.getBucket()).key(store.pathToKey(path));
        if (!overwrite) {
            request.overrideConfiguration(override -> override.putHeader("If-None-Match", "*"));
        }
        try {
            client.putObject(
                    request.build(), RequestBody.fromBytes(text.toString().getBytes(StandardCharsets.UTF_8)));
        } catch (S3Exception failure) {
            if (failure.statusCode() == 412 || failure.statusCode() == 409) {
                throw new FileAlreadyExistsException(path.toString());
            }
            throw new IOException(failure);
        }
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return false;
    }
}
